"""Measures a GPU's ceilings and prints them as a line of JSON.

python benchmarks/peers/roofline.py > roofline.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

GEMV = ((4096, 4096), (12288, 4096), (4096, 12288), (3072, 1024), (151936, 4096))
"""Outputs and inputs of products with one row."""

BUFFER = 4 << 30
NODES = 1000


def seconds(work: Callable[[], object], runs: int = 10) -> float:
    """Median by device events, after three runs that warm up."""
    for _ in range(3):
        work()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for start, end in pairs:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in pairs)[runs // 2] / 1e3


def captured(work: Callable[[], object]) -> Callable[[], object]:
    """The replay of a graph of ``work``."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def products(row: torch.Tensor, weights: torch.Tensor) -> None:
    """One after the other, so that each weight has left the caches when it comes again."""
    for weight in weights:
        F.linear(row, weight)


def measure() -> dict[str, object]:
    """Copy bandwidth, products of one row with weights that no cache holds, the matrix rate, a graph node's cost."""
    torch.manual_seed(0)
    found: dict[str, object] = {"kind": "roofline", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    source = torch.empty(BUFFER // 2, dtype=torch.bfloat16, device="cuda").normal_()
    found["copy_gb_s"] = round(2 * BUFFER / seconds(partial(torch.empty_like(source).copy_, source)) / 1e9)
    for outputs, inputs in GEMV:
        count = min(64, source.numel() // (outputs * inputs))
        weights = source[: count * outputs * inputs].view(count, outputs, inputs)
        row = torch.randn(1, inputs, dtype=torch.bfloat16, device="cuda")
        replay = captured(partial(products, row, weights))
        found[f"gemv_{outputs}x{inputs}_gb_s"] = round(weights.nbytes / seconds(replay) / 1e9)
    left, right = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    found["bf16_tflop_s"] = round(2 * 8192**3 / seconds(lambda: left @ right.t()) / 1e12)
    small = torch.zeros(1024, device="cuda")
    found["graph_node_us"] = round(seconds(captured(lambda: [small.add_(1) for _ in range(NODES)])) / NODES * 1e6, 2)
    return found


if __name__ == "__main__":
    print(json.dumps(measure()), flush=True)
