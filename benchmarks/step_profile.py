"""Where a step's time goes on an accelerator: every kernel with its calls and time, the gaps between, the host's share.

    python benchmarks/step_profile.py --shape qwen3-8b --batch 1,64 --context 256        # decode, dummy weights
    python benchmarks/step_profile.py --shape qwen3-8b --prefill 8192                    # one step of that many tokens
    python benchmarks/step_profile.py --model DIR --batch 8 --set engine.graphs=false

The floor is that of the shape (``peers/shapes.py``): bytes over a copy measured here, operations over a large product
measured on an H200.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from make_model import ALL_SHAPES, AnyShape, write_checkpoint

from llmk.config import load
from llmk.engine.core import EngineCore
from llmk.engine.launch import build_core
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot

STEPS = 20
COPY_BYTES = 4 << 30
PRODUCT_RATE = 7.95e14
"""Operations per second of a large bf16 product, as measured on an H200 (``peers/roofline.py``)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """``calls`` and device time, in microseconds, of one kernel in one step."""

    name: str
    calls: float
    each: float

    @property
    def total(self) -> float:
        """Its time in a step."""
        return self.calls * self.each


class Load:
    """Requests on one engine."""

    def __init__(self, core: EngineCore, vocab_size: int) -> None:
        self._core = core
        self._vocab_size = vocab_size
        self._random = Random(1)
        self._added = 0

    def add(self, count: int, prompt: int, new: int) -> None:
        """Requests with prompts of their own."""
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        for _ in range(count):
            tokens = [self._random.randrange(3, self._vocab_size) for _ in range(prompt)]
            self._core.add(EngineRequest(id=str(self._added), prompt_token_ids=tokens, params=params))
            self._added += 1

    def steps(self, count: int) -> float:
        """Runs ``count`` steps; returns seconds."""
        torch.accelerator.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            self._core.step()
        torch.accelerator.synchronize()
        return time.perf_counter() - start

    def until_decoding(self, count: int) -> None:
        """Runs until all of ``count`` requests decode."""
        while self._core.stats.running < count or self._core.stats.waiting:
            self._core.step()
        self.steps(6)

    def finish(self) -> None:
        """Ends all of them."""
        self._core.abort([str(number) for number in range(self._added)])
        while self._core.has_work:
            self._core.step()


def profile(load: Load, steps: int) -> tuple[list[Kernel], float, float]:
    """Kernels by time, busy microseconds per step, and the microseconds per step between its first and last work."""
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as recorded:
        load.steps(steps)
    spans = [event for event in recorded.events() if event.device_type != torch.autograd.DeviceType.CPU]
    times: dict[str, list[float]] = defaultdict(list)
    for event in spans:
        times[event.name].append(event.time_range.elapsed_us())
    kernels = [Kernel(name, len(each) / steps, statistics.fmean(each)) for name, each in times.items()]
    first = min(event.time_range.start for event in spans)
    last = max(event.time_range.end for event in spans)
    busy = sum(kernel.total for kernel in kernels)
    return sorted(kernels, key=lambda kernel: -kernel.total), busy, (last - first) / steps


def copy_rate() -> float:
    """Bytes per second of a copy within the device, read and written."""
    x = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        y.copy_(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * COPY_BYTES / min(times)


def report(name: str, wall: float, floor: float, found: tuple[list[Kernel], float, float]) -> dict[str, Any]:
    """Prints a table, and returns it as plain data."""
    kernels, busy, span = found
    print(f"\n## {name}: {1e3 * wall:.3f} ms a step; floor {1e3 * floor:.3f} ms ({floor / wall:.0%})")
    print(f"while profiled: {span:.0f} us a step, of which kernels take {busy:.0f} us, one after the other")
    print("| kernel | calls | us each | us | share |\n| --- | --- | --- | --- | --- |")
    for kernel in kernels[:16]:
        share = kernel.total / busy
        print(f"| {kernel.name[:70]} | {kernel.calls:g} | {kernel.each:.2f} | {kernel.total:.1f} | {share:.1%} |")
    rows = [(kernel.name, kernel.calls, kernel.each) for kernel in kernels]
    return {"name": name, "wall_s": wall, "floor_s": floor, "busy_us": busy, "span_us": span, "kernels": rows}


def main() -> None:
    """Prints a table for each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b", choices=ALL_SHAPES)
    parser.add_argument("--model", default="", help="checkpoint folder; dummy weights of the shape where not given")
    parser.add_argument("--batch", default="1", help="requests that decode at once; several, separated by commas")
    parser.add_argument("--context", type=int, default=256, help="tokens of each")
    parser.add_argument("--prefill", type=int, default=0, help="instead: a step that computes prompts of 2,048 tokens")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("--out", type=Path, help="file that JSON lines are added to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"model.path": args.model or folder, "model.max_model_len": 4096}
        if not args.model:
            write_checkpoint(ALL_SHAPES[args.shape], Path(folder), weights=False)
            settings["model.load_format"] = "dummy"
        for setting in args.set:
            key, _, value = setting.partition("=")
            settings[key] = json.loads(value) if value[:1] in "tf0123456789[{" else value
        rate = copy_rate()
        torch.cuda.empty_cache()
        core, info = build_core(boot(load(settings)))
    load_ = Load(core, info.vocab_size)
    shape = ALL_SHAPES[args.shape]
    for row in _prefill(args, load_, shape) if args.prefill else _decode(args, load_, shape, rate):
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def _decode(args: argparse.Namespace, load: Load, shape: AnyShape, rate: float) -> list[dict[str, Any]]:
    rows = []
    for batch in map(int, args.batch.split(",")):
        load.add(batch, args.context, 400)
        load.until_decoding(batch)
        wall = min(load.steps(STEPS) for _ in range(3)) / STEPS
        found = profile(load, STEPS)
        floor = shape.decode_bytes(batch, args.context) / rate
        rows.append(report(f"{args.shape}, {batch} x {args.context}", wall, floor, found))
        load.finish()
    return rows


def _prefill(args: argparse.Namespace, load: Load, shape: AnyShape) -> list[dict[str, Any]]:
    count = max(1, args.prefill // 2048)
    for _ in range(2):
        load.add(count, 2048, 1)
        load.steps(4)
    load.add(count, 2048, 1)
    wall = load.steps(3)
    load.add(count, 2048, 1)
    kernels, busy, span = profile(load, 3)
    kernels = [Kernel(kernel.name, 3 * kernel.calls, kernel.each) for kernel in kernels]
    floor = count * shape.prefill_flops(2048) / PRODUCT_RATE
    return [report(f"{args.shape}, {count} prompts of 2,048", wall, floor, (kernels, 3 * busy, 3 * span))]


if __name__ == "__main__":
    main()
