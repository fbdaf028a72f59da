"""Where a decode step's time goes on a CPU: native kernels one by one, and what is outside of them.

    python benchmarks/peers/make_model.py --shape qwen3-0.6b --out m
    python benchmarks/cpu_profile.py m --context 128 --requests 1

Steps are replayed, so that the time outside is that of a step less that of its runs of native kernels: scheduling, the
operators of torch, and what is read back. It is measured first, without a clock between kernels; then each kernel is
timed on its own, which adds about half a microsecond to it. Times are medians of the faster half of the steps, as other
programs slow down the rest; ``least_ms`` is the sum of each call's least time, which is near that of an idle machine
where many steps were run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from typing import Any

from llmk_cpu import graphs
from llmk_cpu.native.library import Function, Kernel, Library

NAMES = dict[int, str]()
"""Of kernels, by address."""

Calls = list[tuple[Kernel, tuple[Any, ...]]]
_optional, _together = Library.optional, graphs._together


def named(self: Library, name: str, signature: str) -> Kernel | None:
    """As :meth:`Library.optional`, which takes note of names."""
    kernel = _optional(self, name, signature)
    if kernel is not None:
        NAMES[kernel.address] = name
    return kernel


class Clock:
    """Seconds by name since it was cleared, as ``now`` counts them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seconds = defaultdict[str, float](float)

    def timed(self, name: str, run: Callable[[], object]) -> Callable[[], object]:
        """What runs this and adds its time."""

        def measured() -> None:
            began = self.now()
            run()
            self.seconds[name] += self.now() - began

        return measured

    def whole(self, calls: Calls, replay: Function) -> Callable[[], object]:
        """Times a run of kernels."""
        return self.timed("native", _together(calls, replay))

    def each(self, calls: Calls, replay: Function) -> Callable[[], object]:
        """Times each of its kernels."""
        names = (f"{NAMES[call[0].address]} {number}" for number, call in enumerate(calls))
        runs = [self.timed(name, _together([call], replay)) for name, call in zip(names, calls, strict=True)]

        def run() -> None:
            for one in runs:
                one()

        return run


def steps(clock: Clock, model: str, threads: int, requests: int, context: int, count: int) -> list[dict[str, float]]:
    """Milliseconds of decode steps by name; ``step`` is all of it. The faster half."""
    from llmk.config import load
    from llmk.engine.launch import build_core
    from llmk.engine.wire.request import EngineRequest
    from llmk.engine.wire.sampling_params import SamplingParams
    from llmk.planning.boot import boot

    given = {"model.path": model, "platform.threads": threads, "model.max_model_len": context + count + 64}
    core, _ = build_core(boot(load(given, environ={})))
    params, found = SamplingParams(temperature=0, max_tokens=count + 8, ignore_eos=True), list[dict[str, float]]()
    for number in range(requests):
        prompt = random.choices(range(1000, 100_000), k=context)
        core.add(EngineRequest(id=str(number), prompt_token_ids=prompt, params=params, seed=0))
    while core.has_work:
        clock.seconds.clear()
        began = clock.now()
        core.step()
        took = clock.now() - began
        if clock.seconds:
            found.append({name: 1e3 * seconds for name, seconds in {"step": took, **clock.seconds}.items()})
    return sorted(found[4:], key=lambda each: each["step"])[: count // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint or GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--processor-time", action="store_true", help="count processor time, for one thread")
    args = parser.parse_args()
    Library.optional = named  # type: ignore[method-assign]
    how = (args.model, args.threads, args.requests, args.context, args.steps)
    clock = Clock(time.thread_time if args.processor_time else time.perf_counter)
    graphs._together = clock.whole
    whole = steps(clock, *how)
    step = statistics.median(each["step"] for each in whole)
    outside = statistics.median(each["step"] - each["native"] for each in whole)
    print(json.dumps({"step_ms": round(step, 2), "outside_ms": round(outside, 3), "share": round(outside / step, 4)}))
    graphs._together = clock.each
    kernels = steps(clock, *how)
    calls = sorted({name for each in kernels for name in each} - {"step"})
    for kernel, names in groupby(calls, key=lambda name: name.split()[0]):
        own = list(names)
        took = statistics.median(sum(each.get(name, 0.0) for name in own) for each in kernels)
        least = sum(min(each[name] for each in kernels if name in each) for name in own)
        print(json.dumps({"kernel": kernel, "ms": round(took, 3), "least_ms": round(least, 3)}))


if __name__ == "__main__":
    main()
