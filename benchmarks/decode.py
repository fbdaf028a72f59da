"""Decode speed at batch 1, llmk beside transformers in one run, on a random checkpoint of a real shape.

    python benchmarks/decode.py --shape qwen3-0.6b --dtype bfloat16 --rounds 3
    python benchmarks/decode.py --engines llmk llmk-int8

Each engine runs alone in a process of its own, in turn, several rounds over, so that a noisy machine disturbs both
alike. What is reported is each engine's median time per output token, and the ratio to the first. The floor is the
unquantized weights' bytes over the bandwidth of a large copy, measured at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
PROMPT, NEW = 128, 48


def run_transformers(model: str, dtype: str, threads: int) -> list[float]:
    """When each token of ``generate`` arrives, in seconds; transformers' own cache and defaults."""
    import torch
    from transformers import AutoModelForCausalLM

    class Clock:
        """A streamer that keeps the time of every token; the first ``put`` is the prompt."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    torch.set_num_threads(threads)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    net.generation_config.eos_token_id = None
    prompt = torch.arange(1000, 1000 + PROMPT)[None]
    with torch.inference_mode():
        net.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
        clock = Clock()
        net.generate(prompt, max_new_tokens=NEW, do_sample=False, pad_token_id=0, streamer=clock)
    return clock.times[1:]


def run_llmk(model: str, dtype: str, threads: int, quantization: str = "") -> list[float]:
    """When each token arrives at the front end, in seconds; engine in this process, defaults but for the length."""
    import asyncio

    from llmk import AsyncLLM, RequestContext, SamplingParams
    from llmk.config import load

    async def measure() -> list[float]:
        options = {"model.path": model, "model.dtype": dtype, "model.max_model_len": 2048, "platform.threads": threads}
        llm = await AsyncLLM.start(load({**options, "model.quantization": quantization}), in_process=True)
        times: list[float] = []
        for first, new in ((2000, 4), (1000, NEW)):
            params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
            times = []
            async for _ in llm.generate(list(range(first, first + PROMPT)), params, RequestContext(str(first))):
                times.append(time.perf_counter())
        await llm.close()
        return times

    return asyncio.run(measure())


def copy_bandwidth(threads: int) -> float:
    """Bytes per second read by a sum over a buffer far larger than any cache."""
    import torch

    torch.set_num_threads(threads)
    buffer = torch.ones(1 << 28, dtype=torch.float32)
    best = min(_seconds(lambda: buffer.sum()) for _ in range(5))
    return buffer.nbytes / best


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


ENGINES = {
    "transformers": run_transformers,
    "llmk": run_llmk,
    "llmk-int8": partial(run_llmk, quantization="int8"),
}


def main() -> int:
    """Measures one engine (``--engine``), or several in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--model", default="", help="checkpoint folder; made at random where it is not given")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=sorted(ENGINES), default=["transformers", "llmk"])
    parser.add_argument("--engine", choices=sorted(ENGINES), default="")
    args = parser.parse_args()
    if args.engine:
        times = ENGINES[args.engine](args.model, args.dtype, args.threads)
        print(json.dumps({"ms": 1e3 * statistics.median(b - a for a, b in pairwise(times))}))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or _make_model(args.shape, folder)
        rounds: dict[str, list[float]] = {name: [] for name in args.engines}
        for _ in range(args.rounds):
            for name in args.engines:
                rounds[name].append(_measure(name, model, args))
                print(f"{name:>13}: {rounds[name][-1]:7.1f} ms per token", flush=True)
        _report(rounds, Path(model), args)
    return 0


def _make_model(shape: str, folder: str) -> str:
    command = [sys.executable, str(HERE / "peers" / "make_model.py"), "--shape", shape, "--out", folder]
    subprocess.run(command, check=True)
    return folder


def _measure(engine: str, model: str, args: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "--engine", engine, "--model", model]
    command += ["--dtype", args.dtype, "--threads", str(args.threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.strip().splitlines()[-1])["ms"])


def _report(times: dict[str, list[float]], model: Path, args: argparse.Namespace) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    floor = 1e3 * weights / copy_bandwidth(args.threads)
    print(f"\n| engine | ms per token (all rounds) | share of the floor ({floor:.1f} ms) |\n| --- | --- | --- |")
    for name, values in times.items():
        rounds = ", ".join(f"{value:.1f}" for value in values)
        print(f"| {name} | {medians[name]:.1f} ({rounds}) | {floor / medians[name]:.0%} |")
    first, *others = medians
    for name in others:
        print(f"\n{name} takes {medians[name] / medians[first]:.2f}× the time of {first}")


if __name__ == "__main__":
    sys.exit(main())
