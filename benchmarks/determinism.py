"""What batch invariance costs: time per step with and without ``--engine.deterministic``.

    python benchmarks/determinism.py --dtype bfloat16 --threads 1

Both engines are built in this process and measured in turn, several rounds over, so that a noisy machine disturbs both
alike; what is reported is each one's best round and their ratio. A decoding request has 128 tokens of prompt.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass, field

from llmk.config import load
from llmk.engine.core import EngineCore
from llmk.engine.launch import build_core
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot

PROMPT, STEPS, PREFILL = 128, 12, 512
BATCHES = (1, 32)


@dataclass(slots=True)
class Engine:
    """An engine and what was measured of it, in ms per step by name."""

    core: EngineCore
    times: dict[str, list[float]] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def build(cls, args: argparse.Namespace, *, deterministic: bool) -> Engine:
        """Without prefix caching: every prompt is computed."""
        options = {
            "model.path": args.model,
            "model.dtype": args.dtype,
            "model.load_format": args.load_format,
            "model.max_model_len": 1024,
            "platform.threads": args.threads,
            "scheduler.max_num_seqs": max(BATCHES),
            "scheduler.max_num_batched_tokens": max(BATCHES) * PROMPT,
            "cache.prefix_caching": False,
            "engine.deterministic": deterministic,
        }
        return cls(build_core(boot(load(options, environ={})))[0])

    def round(self) -> None:
        """Measures everything once."""
        for batch in BATCHES:
            self._add(batch, PROMPT, STEPS + 1)
            self._step()
            self._note(f"decode, batch {batch}", statistics.median(self._step() for _ in range(STEPS)))
        self._add(1, PREFILL, 1)
        self._note(f"prefill, {PREFILL} tokens", self._step())

    def _add(self, count: int, length: int, new: int) -> None:
        for number in itertools.islice(self.numbers, count):
            params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
            prompt = [3 + (number + place) % 1000 for place in range(length)]
            self.core.add(EngineRequest(id=str(number), prompt_token_ids=prompt, params=params))

    def _step(self) -> float:
        start = time.perf_counter()
        self.core.step()
        return 1e3 * (time.perf_counter() - start)

    def _note(self, name: str, milliseconds: float) -> None:
        self.times.setdefault(name, []).append(milliseconds)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="checkpoint folder; the demo model where it is not given")
    parser.add_argument("--load-format", default="safetensors", help="dummy: random weights, config.json will do")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    engines = [Engine.build(args, deterministic=deterministic) for deterministic in (False, True)]
    for engine in engines:
        engine.round()
        engine.times.clear()
    for _ in range(args.rounds):
        for engine in engines:
            engine.round()
    print("| step | plain, ms | deterministic, ms | ratio |\n| --- | --- | --- | --- |")
    for name in engines[0].times:
        plain, invariant = (min(engine.times[name]) for engine in engines)
        print(f"| {name} | {plain:.2f} | {invariant:.2f} | {invariant / plain:.2f} |")


if __name__ == "__main__":
    main()
