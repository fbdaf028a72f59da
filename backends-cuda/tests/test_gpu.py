"""The platform on a real GPU: what was detected, memory, graphs, collectives and GEMMs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpus import FACTS, needs_gpu

from llmk.api import Graphs, PlatformFacts
from llmk_cuda.platform import CUDAPlatform

pytestmark = needs_gpu
GIB = 1 << 30
assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
"""A captured GEMM may have another order of summation."""


@pytest.fixture
def facts() -> PlatformFacts:
    assert FACTS is not None
    return FACTS


@pytest.fixture
def platform(facts: PlatformFacts) -> Iterator[CUDAPlatform]:
    threads = torch.get_num_threads()
    platform = CUDAPlatform(facts)
    platform.device.setup(0)
    yield platform
    torch.set_num_threads(threads)


@pytest.fixture
def graphs(platform: CUDAPlatform) -> Graphs:
    assert platform.graphs is not None
    return platform.graphs


def test_facts_match_cuda(facts: PlatformFacts) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert facts.device_name == properties.name
    assert facts.arch_version == (properties.major, properties.minor)
    assert facts.num_devices <= torch.cuda.device_count()
    assert 0.9 < properties.total_memory / facts.memory_bytes <= 1


def test_detection_initializes_neither_torch_nor_cuda() -> None:
    """A process that was probed can fork, and its children can use CUDA."""
    code = (
        "import sys; from llmk.api import Host; from llmk_cuda.probe import probe;"
        "assert probe(Host()).verdict; assert 'torch' not in sys.modules;"
        "assert not any('libcudart' in line for line in open('/proc/self/maps'));"
        "import os; child = os.fork();"
        "import torch; torch.zeros(1, device='cuda') if child == 0 else None;"
        "sys.exit(0 if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("setting", ["0", "", "7"])
def test_torch_and_the_probe_see_the_same_devices(setting: str) -> None:
    code = (
        "import torch; from llmk.api import Host; from llmk_cuda.probe import probe; facts = probe(Host()).facts;"
        "assert (facts.num_devices if facts else 0) == torch.cuda.device_count(), (facts, torch.cuda.device_count())"
    )
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": setting}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr


def test_device(platform: CUDAPlatform) -> None:
    assert platform.device.torch_device(0) == torch.device("cuda:0")
    assert torch.cuda.current_device() == 0
    assert torch.get_num_threads() == 1
    done = torch.cuda.Event()
    torch.cuda._sleep(50_000_000)
    done.record()
    assert not done.query()
    platform.device.synchronize()
    assert done.query()


def test_memory_that_the_allocator_keeps_counts_as_free(platform: CUDAPlatform) -> None:
    before = platform.memory.available()
    assert 0 < before <= platform.memory.total()
    tensor = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert before - platform.memory.available() == pytest.approx(GIB, rel=0.05)
    del tensor
    assert torch.cuda.memory_reserved() >= GIB, "the allocator still has it"
    assert platform.memory.available() == pytest.approx(before, abs=64 << 20)


def test_available_memory_can_be_allocated(platform: CUDAPlatform) -> None:
    kept = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(50)][::2]
    available = platform.memory.available()
    tensor = torch.empty(available - (64 << 20), dtype=torch.uint8, device="cuda")
    assert tensor.numel() > 0
    assert kept
    del tensor, kept
    torch.cuda.empty_cache()  # the next test needs memory that the allocator has cached


@pytest.mark.parametrize("order", list(itertools.permutations((GIB // 2, GIB, GIB // 4))))
def test_the_peak_of_a_step_is_measured(platform: CUDAPlatform, order: tuple[int, ...]) -> None:
    kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    torch.empty(GIB, dtype=torch.uint8, device="cuda")  # what the allocator has from before is not the step's

    def run() -> None:
        for size in order:
            torch.empty(size, dtype=torch.uint8, device="cuda")

    assert platform.memory.measure(run) == pytest.approx(GIB, rel=0.05)
    assert kept.numel() == GIB


AHEAD = """
import torch, triton, triton.language as tl
from llmk.api import Host
from llmk_cuda.platform import CUDAPlatform
from llmk_cuda.probe import probe

compiled = []
triton.knobs.compilation.listener = lambda **what: compiled.append(what["src"].name)

@triton.jit
def take(table, index, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(table + tl.load(index + at)))

@triton.jit
def reverse(out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, SIZE - 1 - at)

def step(size):
    index, out = torch.empty(size, dtype=torch.int64, device="cuda"), torch.empty(size, device="cuda")
    reverse[(1,)](index, size)
    table = torch.arange(size, device="cuda").float()[index]  # out of bounds, if nothing filled the index
    take[(1,)](table, index, out, size)
    return out

platform = CUDAPlatform(probe(Host()).facts)
platform.device.setup(0)
with platform.compiling.ahead():
    for size in (16, 32, 64, 128):
        step(size)
platform.device.synchronize()
assert len(compiled) == 8, compiled
for size in (16, 32, 64, 128):
    assert step(size).tolist() == list(range(size))
assert len(compiled) == 8, compiled
"""


def test_kernels_that_were_compiled_ahead_run(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "ahead.py").write_text(AHEAD)
    environ = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, tmp_path / "ahead.py"], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr


def test_a_graph_replays_on_new_inputs(graphs: Graphs) -> None:
    x = torch.ones(64, 64, device="cuda")
    weight = torch.randn(64, 64, device="cuda")
    replay = graphs.capture(lambda: F.linear(x, weight).relu())
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        found = replay()
        assert_close(found, F.linear(x, weight).relu())


def test_graphs_share_a_pool(graphs: Graphs) -> None:
    """Of two graphs with large intermediates and results, the second takes no more memory."""
    inputs = {rows: torch.randn(rows, 1024, device="cuda") for rows in (8192, 4096)}
    weight = torch.randn(1024, 1024, device="cuda") / 32

    def chain(rows: int) -> torch.Tensor:
        y = inputs[rows]
        for _ in range(8):
            y = (y @ weight).relu()
        return y * 2

    first = graphs.capture(lambda: chain(8192))
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    second = graphs.capture(lambda: chain(4096))
    assert torch.cuda.memory_reserved() - reserved < 4096 * 1024 * 4, "a graph of its own would hold two such buffers"
    for _ in range(2):
        assert_close(first(), chain(8192))
        assert_close(second(), chain(4096))


def test_results_of_any_shape_are_returned(graphs: Graphs) -> None:
    """Strided, empty and small ones, of several dtypes, within other objects."""

    @dataclass(frozen=True)
    class Several:
        one: torch.Tensor
        rest: tuple[list[torch.Tensor], None]

    x = torch.randn(6, 10, device="cuda")

    def run() -> Several:
        return Several((x * 2)[::2, 1:7], ([(x > 0).t(), x.to(torch.bfloat16), x.long(), x[:0] + 1, x.sum()], None))

    replay = graphs.capture(run)
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        found, expected = replay(), run()
        for one, other in zip((found.one, *found.rest[0]), (expected.one, *expected.rest[0]), strict=True):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            assert torch.equal(one, other)


def test_kernels_compile_before_the_capture(graphs: Graphs) -> None:
    """``run`` is executed for warming up and then recorded: state that it advances has moved on by one."""
    count = torch.zeros((), device="cuda")
    replay = graphs.capture(lambda: count.add_(1))
    torch.cuda.synchronize()
    assert count.item() == 1
    replay()
    assert count.item() == 2


def test_collectives(platform: CUDAPlatform, tmp_path: Path) -> None:
    assert platform.collectives is not None
    dist.init_process_group(
        platform.collectives.backend, init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    try:
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        assert x.tolist() == [1.0] * 4
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(7, 33), (1, 512), (4096, 1024), (151, 4095)])
def test_cublas_against_exact_gemms(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    torch.manual_seed(5)
    weight = torch.randn(outputs, inputs, device="cuda").to(dtype)
    bias = torch.randn(outputs, device="cuda").to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 6e-3
    for rows in (1, 2, 17, 300):
        x = torch.randn(rows, inputs, device="cuda").to(dtype)
        exact = F.linear(x.double(), weight.double(), bias.double())
        found = F.linear(x, weight, bias)
        assert (found.double() - exact).norm() <= tolerance * exact.norm()
