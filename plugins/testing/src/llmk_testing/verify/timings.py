"""How fast the machine reads and multiplies, and how near the chosen kernels come to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from llmk.api import Choice, LinearQuery
from llmk.engine.device.graphs import obstacles
from llmk.engine.measuring.benchmark_inputs import BenchmarkInputs
from llmk.kernel.loader import load_object
from llmk.nn.build import Build
from llmk_testing.bench import Bench
from llmk_testing.booting import boot_on
from llmk_testing.verify.record import Part
from llmk_testing.verify.tokens import speeds

_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
}
"""A layer of a model with eight billion parameters: its GEMMs are timed, without a checkpoint."""
_SITES = ("qkv", "down")
_COUNTS, _THOROUGH_COUNTS = (1, 16, 512), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_SECONDS, _ROOFLINE_SECONDS = 0.25, 1.0
_READ_BYTES, _LEAST_READ_BYTES = 1 << 30, 1 << 28
"""Of a sum: more than any cache holds, and where memory is scarce, more than most do."""
_RECORDED = 20
"""Calls of a graph, or as many as there are sets of weights."""
_LONG_ENOUGH = 0.02
_LEAST_FREE = 1 << 30


def open_device(platform: str) -> Part:
    """What memory the device has. That there is too little for a verification is a problem."""
    memory = Bench.open(platform).platform.memory
    total, free = memory.total(), memory.available()
    part = Part({"memory": total, "free": free})
    if free < _LEAST_FREE:
        found = f"{free / (1 << 30):.2f} of {total / (1 << 30):.1f} GiB are free"
        part.problems.append(f"the device is busy: {found}, and 1 GiB is needed; stop what uses it, or wait")
    return part


def measure(platform: str, dtype: str, *, thorough: bool = False, seed: int = 0) -> Part:
    """The roofline of this machine, the time of GEMMs in ``dtype`` by the kernels that a plan chooses, and the demo
    model's speed. A kernel may do better than the roofline, which is that of torch's own operators."""
    bench = Bench.open(platform, thorough=thorough, seed=seed)
    part = Part(_device_speeds(bench, dtype))
    part.found["demo_tokens_per_second"] = speeds(platform)  # an engine's threads are not in this one's inference mode
    return part


@torch.inference_mode()
def _device_speeds(bench: Bench, dtype: str) -> dict[str, Any]:
    bandwidth = read_bandwidth(bench)
    rates = {name: gemm_rate(bench, getattr(torch, name)) for name in dict.fromkeys((dtype, "float32"))}
    roofline = {
        "read, GB/s": round(bandwidth / 1e9, 2),
        **{f"GEMM in {name}, TFLOP/s": round(rate / 1e12, 3) for name, rate in rates.items()},
    }
    return {"roofline": roofline, "kernels": _kernels(bench, dtype, bandwidth, max(rates.values()))}


def read_bandwidth(bench: Bench) -> float:
    """Bytes a second that a sum over a large tensor reads."""
    size = (_READ_BYTES if bench.platform.memory.available() > 32 * _READ_BYTES else _LEAST_READ_BYTES) // 4
    x = torch.ones(size, device=bench.device)
    reads: tuple[Callable[[], Any], ...] = (x.sum, x.amax, lambda: torch.dot(x, x))
    return 4 * size / min(_best(bench, read, _ROOFLINE_SECONDS) for read in reads)


def gemm_rate(bench: Bench, dtype: torch.dtype) -> float:
    """Floating-point operations a second of torch's GEMM, of matrices that take long enough."""
    size = 1024
    while True:
        x = torch.randn(size, size, device=bench.device).to(dtype)
        seconds = _best(bench, partial(torch.mm, x, x), _ROOFLINE_SECONDS)
        if seconds > _LONG_ENOUGH or size >= 8192:
            return 2 * float(size) ** 3 / seconds
        size *= 2


def _kernels(bench: Bench, dtype: str, bandwidth: float, rate: float) -> list[dict[str, Any]]:
    with TemporaryDirectory(prefix="llmk-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        boot = boot_on(bench, Path(folder), **{"model.dtype": dtype})
    plan, stored = boot.plan, getattr(torch, dtype)
    build = Build(plan, dtype=stored, device=bench.device, load_object=load_object, checkpoint=boot.checkpoint)
    inputs, found = BenchmarkInputs(build, boot.facts, bench.registry), []
    for choice in (plan.choice("linear", site) for site in _SITES):
        query, given = choice.query, inputs.of(choice)
        assert isinstance(query, LinearQuery)
        assert given is not None
        for tokens in _THOROUGH_COUNTS if bench.thorough else _COUNTS:
            build.select(tokens)
            run = given.at(tokens)
            calls, times = _recorded(bench, choice, tokens, run, given.sets)
            seconds = _best(bench, calls) / times
            read = (query.in_features * query.out_features + tokens * query.in_features) * stored.itemsize
            least = max(read / bandwidth, 2 * tokens * query.in_features * query.out_features / rate)
            sizes = {"out": query.out_features, "in": query.in_features, "tokens": tokens}
            speed = {"us": round(1e6 * seconds, 2), "share": round(least / seconds, 3)}
            found.append({"id": choice.piece(tokens).id, **sizes, **speed})
    return found


def _recorded(
    bench: Bench, choice: Choice, tokens: int, run: Callable[[int], Any], sets: int
) -> tuple[Callable[[], Any], int]:
    """What makes a number of calls, and the number: as a graph where steps with the kernel are recorded, so that no
    launch from the host is timed that an engine would not make."""
    graphs = bench.platform.graphs
    if graphs is None or graphs.on_demand or any(obstacles(choice, tokens, tokens)):
        return _in_turn(run, sets), 1
    calls = sets * -(-_RECORDED // sets)

    def all_calls() -> None:
        for number in range(calls):
            run(number % sets)

    all_calls()  # kernels are compiled before a graph is recorded
    return graphs.capture(all_calls), calls


def _in_turn(run: Callable[[int], Any], sets: int) -> Callable[[], Any]:
    """``run`` on each set of weights in turn, so that none is in a cache."""
    number = 0

    def call() -> Any:
        nonlocal number
        number += 1
        return run(number % sets)

    return call


def _best(bench: Bench, run: Callable[[], Any], seconds: float = _SECONDS) -> float:
    """Seconds of a call: of several rounds the fastest, since what else the machine does only adds to it."""
    synchronize = bench.platform.device.synchronize
    run()
    synchronize()
    started = time.perf_counter()
    run()
    synchronize()
    calls = max(1, int(seconds / 8 / (time.perf_counter() - started)))
    rounds: list[float] = []
    while len(rounds) < 3 or sum(rounds) < seconds:
        started = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize()
        rounds.append(time.perf_counter() - started)
    return min(rounds) / calls
