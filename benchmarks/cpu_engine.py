"""The engine on a CPU: a line of JSON with processor time of decode steps and prompts, memory, and start.

    python benchmarks/cpu_engine.py MODEL                                 # as it is chosen by default
    python benchmarks/cpu_engine.py MODEL --threads 2 --model.dtype float32
    python benchmarks/cpu_engine.py MODEL --select.attention.use reference.attention

Processor time is that of all threads: with one thread it says more than time on the clock on a machine that others use.
Run what is to be compared by turns. Further options are llmk's own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

from llmk.config import load
from llmk.engine.core import EngineCore
from llmk.engine.launch import build_core
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot

PROMPT, TOGETHER = 128, 8
LEAST_ID, IDS = 10, 3000
_NUMBERS = itertools.count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    parser.add_argument("--new", type=int, default=12, help="tokens of an answer")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt that is timed")
    args, options = parser.parse_known_args()
    settings: dict[str, Any] = {
        name.removeprefix("--"): value for name, value in zip(*[iter(options)] * 2, strict=True)
    }
    given = {"model.path": args.model, "model.max_model_len": 2 * args.prompt, "platform.threads": args.threads}
    began = time.perf_counter()
    core, _ = build_core(boot(load(given | settings, environ={})))
    found: dict[str, float | str] = {"model": Path(args.model).name, "start_s": time.perf_counter() - began}
    run(core, 1, 16, 2)
    found["decode_ms"] = decode_ms(run(core, 1, PROMPT, args.new), 1)
    found[f"decode_{TOGETHER}_ms"] = decode_ms(run(core, TOGETHER, PROMPT // 4, args.new), TOGETHER)
    found["prompt_s"] = min(run(core, 1, args.prompt, 1)[-1][0] for _ in range(2))
    found["pss_mb"] = pss_mb()
    print(json.dumps({name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}))


def run(core: EngineCore, requests: int, prompt: int, new: int) -> list[tuple[float, int]]:
    """Answers so many requests, with new prompts; returns, after each step that gave tokens, the processor time in
    seconds and the tokens so far."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    for _ in range(requests):
        number = next(_NUMBERS)
        ids = [(7 * number + 13 * place) % IDS + LEAST_ID for place in range(prompt)]
        core.add(EngineRequest(id=str(number), prompt_token_ids=ids, params=params, seed=0))
    began, tokens, marks = time.process_time(), 0, []
    while core.has_work:
        outputs = core.step().outputs
        tokens += sum(len(output.token_ids) for output in outputs)
        if outputs:
            marks.append((time.process_time() - began, tokens))
    return marks


def decode_ms(marks: list[tuple[float, int]], requests: int) -> float:
    """The median of steps in which all requests decode, in milliseconds."""
    times = [seconds for seconds, tokens in marks if tokens >= requests]
    return 1000 * statistics.median(after - before for before, after in itertools.pairwise(times))


def pss_mb() -> float:
    """Proportional memory of this process, in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
