"""What a step costs when a Ray cluster's nodes run the ranks, beside local processes: the same model, spread over two
ranks, on this machine in both cases, in turns.

    python benchmarks/launchers.py --milliseconds 10                  # two stages, of which one computes at a time
    python benchmarks/launchers.py --milliseconds 10 --tensor 2       # ranks that exchange tensors in every layer
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/support"))

from ray_cluster import nodes
from ray_cluster import spread as over

from llmk import LLM, SamplingParams
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.step import StepPlan
from llmk_testing.checkpoints import write_checkpoint

WIDTH = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 8}
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "cache": {"num_blocks": 512},
    "scheduler": {"max_num_seqs": 16},
    "engine": {"steps_in_flight": 1},
}
TWO, ONE = {"threads": 2}, {"threads": 1}
"""Two ranks share the threads of one machine; on nodes, each has those of its own."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
REQUESTS = 8
NUMBER = 1 << 30
"""The first number of empty steps."""


def main() -> None:
    """Prints both, and the difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=10.0, help="of a step, about")
    parser.add_argument("--tensor", type=int, choices=(1, 2), default=1)
    parser.add_argument("--steps", type=int, default=100, help="in each turn")
    parser.add_argument("--turns", type=int, default=32)
    args = parser.parse_args()
    os.environ |= ENVIRONMENT  # of the local processes too
    with tempfile.TemporaryDirectory() as folder, nodes(1) as cluster:
        cluster.add()
        spread = {"tensor": args.tensor, "pipeline": 2 // args.tensor}
        local_ones: dict[str, Any] = {"parallel": spread, "platform": TWO}
        layers = _layers(Path(folder), args.milliseconds, local_ones)
        checkpoint = _checkpoint(Path(folder), layers)
        with (
            LLM(str(checkpoint), **SETTINGS, **local_ones) as local,
            LLM(str(checkpoint), **SETTINGS, platform=ONE, **over(cluster, **spread, environment=ENVIRONMENT)) as ray,
        ):
            engines = {"local processes": Engine(local), "Ray": Engine(ray)}
            for _ in range(args.turns):
                take_turns(list(engines.values()), args.steps)
    print(f"{spread}: {layers} layers, {REQUESTS} requests that decode, {args.turns} turns of {args.steps} steps")
    for name, engine in engines.items():
        print(f"{name:16} step {_said(engine.steps)}, empty step {_said(engine.empty)}")
    _compare(engines)


class Engine:
    """A model over two ranks; seconds of its steps, whole and empty."""

    def __init__(self, llm: LLM) -> None:
        self._core: Any = llm._core
        self._number = NUMBER
        self.steps: list[list[float]] = []
        self.empty: list[list[float]] = []

    def begin(self, count: int) -> None:
        """Has requests that decode, for so many steps."""
        params = SamplingParams(max_tokens=count + 8, temperature=0, ignore_eos=True)
        for number in range(REQUESTS):
            tokens = [3 + number + place for place in range(16)]
            self._core.add(EngineRequest(id=f"{self._number}-{number}", prompt_token_ids=tokens, params=params))
        for _ in range(4):
            self._core.step()
        self.steps.append([])
        self.empty.append([])

    def step(self) -> None:
        """Decodes a token of each."""
        self.steps[-1].append(_timed(self._core.step))

    def run_empty(self) -> None:
        """Runs a step without work."""
        self._number += 1
        plan = StepPlan(step=self._number)
        self.empty[-1].append(_timed(lambda: self._core.runner.submit(plan).result()))

    def finish(self) -> None:
        """Ends the requests."""
        while self._core.has_work:
            self._core.step()


def take_turns(engines: Sequence[Engine], count: int) -> None:
    """So many steps of each, whole and empty, one engine after the other in every step, and another one first each
    time: whatever else the machine does disturbs all alike."""
    for engine in engines:
        engine.begin(count)
    for number in range(count):
        for engine in engines[:: -1 if number % 2 else 1]:
            engine.step()
    for engine in engines:
        engine.finish()
    for number in range(count):
        for engine in engines[:: -1 if number % 2 else 1]:
            engine.run_empty()


def _compare(engines: dict[str, Engine]) -> None:
    local, ray = engines.values()
    ratios = [_median(theirs) / _median(ours) for ours, theirs in zip(local.steps, ray.steps, strict=True)]
    middle = sorted(ratios)[round(len(ratios) / 2 - len(ratios) ** 0.5) : round(len(ratios) / 2 + len(ratios) ** 0.5)]
    whole = _median(list(chain(*ray.steps))) / _median(list(chain(*local.steps)))
    print(f"Ray / local, median of all steps: {whole:.3f}")
    print(f"of turns: median {_median(ratios):.3f}, which is between {middle[0]:.3f} and {middle[-1]:.3f} (95%)")
    added = 1e6 * (_middle(ray.empty) - _middle(local.empty))
    print(f"an empty step takes {added:+.0f} us: {added / 100:+.2f}% of 10 ms")


def _layers(folder: Path, milliseconds: float, local: dict[str, Any]) -> int:
    """How many make a step of so many milliseconds, by what a few take."""
    with LLM(str(_checkpoint(folder, 4)), **SETTINGS, **local) as llm:
        engine = Engine(llm)
        take_turns([engine], 40)
        each = (_median(engine.steps[0]) - _median(engine.empty[0])) / 4
    return max(2, round((milliseconds / 1e3) / each))


def _checkpoint(folder: Path, layers: int) -> Path:
    return write_checkpoint(folder / f"layers{layers}", "llama", num_hidden_layers=layers, **WIDTH)


def _timed(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def _middle(turns: Sequence[Sequence[float]]) -> float:
    return _median(list(map(_median, turns)))


def _said(turns: Sequence[Sequence[float]]) -> str:
    medians = [1e3 * _median(turn) for turn in turns]
    return f"{_median(medians):.3f} ms ({min(medians):.3f} to {max(medians):.3f})"


if __name__ == "__main__":
    main()
