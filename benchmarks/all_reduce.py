"""Times all-reduces over GPUs of one host: NCCL's, and the platform's own through peer memory.

    python benchmarks/all_reduce.py --ranks 2              # a table, and where one overtakes the other
    python benchmarks/all_reduce.py --ranks 2 --sweep      # other tiles of our kernels, too

Starts a process for each rank. A time is that of one call in a replayed graph of 50. Before it is timed, each kernel's
sums are compared bit for bit with the sum in float32 in the order of the ranks, also while recorded calls of all sizes
take turns. Exits with 1 where one is wrong, or where a rank waits for another longer than ``--patience``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llmk.reference.norms import rms_norm
from llmk_cuda.all_reduce import TILES, Most, PeerAllReduce, Tiles, offer
from llmk_triton.common.norms import add_rms_norm

CALLS, REPLAYS = 50, 7
SIZES = [4096 << power for power in range(15)]
"""Bytes, 4 KiB to 64 MiB."""
ONE_SHOT_MOST, TWO_SHOT_LEAST = 2 << 20, 32 << 10
NEVER = 0
HIDDEN = 4096
SWEPT = {
    "256x4": Tiles(one_shot=256, one_shot_warps=4),
    "1024x8": Tiles(one_shot=1024, one_shot_warps=8),
    "1024x16": Tiles(one_shot=1024, one_shot_warps=16),
    "2048x8": Tiles(two_shot=2048, two_shot_warps=8),
    "8192x16": Tiles(two_shot=8192),
    "x64": Tiles(programs=64),
    "x264": Tiles(programs=264),
}

Run = Callable[[Tensor], object]
Kernels = dict[str, tuple[Run, int, int]]
"""What sums, and the least and most bytes that it is timed with, by name."""


def main() -> int:
    """Starts the ranks and waits for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sweep", action="store_true", help="also time other tiles")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after which a rank that waits is ended")
    args = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # a host has few multicast objects, and may be shared
    with TemporaryDirectory(prefix="llmk-") as folder:
        given = (args.ranks, f"{folder}/store", args.sweep)
        start = multiprocessing.get_context("spawn").Process
        processes = [start(target=rank_main, args=(rank, *given)) for rank in range(args.ranks)]
        for process in processes:
            process.start()
        until = time.monotonic() + args.patience
        while any(process.is_alive() for process in processes) and time.monotonic() < until:
            if any(process.exitcode for process in processes):
                time.sleep(2)  # for what the others have to say
                break
            time.sleep(0.05)
        else:
            if any(process.is_alive() for process in processes):
                print(f"not done after {args.patience} s: a rank waits for another, the last line says where")
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
    if any(codes):
        print(f"FAILED: the ranks' exit codes are {codes} (None: still running)")
    return int(any(code != 0 for code in codes))


def rank_main(rank: int, ranks: int, store: str, sweep: bool) -> None:
    """One rank; the first one prints."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    say = print_now if rank == 0 else ignore
    say(f"torch {torch.__version__}, {ranks} x {torch.cuda.get_device_name(device)}")
    for peer in range(ranks):
        if peer != rank:
            say(f"cuda:{rank} can access cuda:{peer}: {torch.cuda.can_device_access_peer(rank, peer)}")
    file_store = dist.FileStore(store, ranks)  # type: ignore[attr-defined]
    dist.init_process_group("nccl", store=file_store, rank=rank, world_size=ranks, device_id=device)
    started = time.monotonic()
    group = dist.group.WORLD
    assert group is not None
    kernels: Kernels = {"NCCL": (dist.all_reduce, 0, SIZES[-1])}
    for name, tiles in {"": TILES, **(SWEPT if sweep else {})}.items():
        for kind, most in {"one": Most(ONE_SHOT_MOST, NEVER), "two": Most(NEVER, SIZES[-1])}.items():
            if name and (tiles[:2] == TILES[:2]) == (kind == "one"):
                continue  # differs for the other kernel only
            found = offer(group, device, most, tiles)
            if not isinstance(found, PeerAllReduce):
                say(f"no peer memory: {'; '.join(map(str, found.reasons))}")
                os._exit(1)
            limits = (0, ONE_SHOT_MOST) if kind == "one" else (TWO_SHOT_LEAST, SIZES[-1])
            kernels[f"{kind} {name}".strip()] = (found, *limits)
    say(f"peer memory mapped in {time.monotonic() - started:.1f} s")
    try:
        wrong = check(rank, ranks, device, kernels, say)
        measure(device, kernels, say)
        wrong += check_norms(rank, ranks, device, say)
        measure_norms(device, say)
    except Exception:
        traceback.print_exc()
        os._exit(1)
    say(f"done in {time.monotonic() - started:.1f} s" + (f", WRONG: {', '.join(wrong)}" if wrong else ""))
    torch.cuda.synchronize()
    os._exit(1 if wrong else 0)  # graphs outlive the group else, which NCCL waits for


def check(
    rank: int, ranks: int, device: torch.device, kernels: dict[str, Any], say: Callable[[str], None]
) -> list[str]:
    """The kernels whose sums are wrong, or differ between ranks."""
    wrong = []
    for name, (run, least, most) in kernels.items():
        if name == "NCCL":
            continue
        problems, graphs = [], []
        for dtype in (torch.bfloat16, torch.float16, torch.float32) if name in ("one", "two") else (torch.bfloat16,):
            for size in (16, 4096, 8192 + 16, 3 * 4096 * 5, 65536 + 48, 524288, 1048576 + 16, 5 << 20, 33554432 + 16):
                if not least <= size <= most:
                    continue
                each = [values(size, dtype, device, seed) for seed in range(ranks)]
                expected = sum_of(each)
                source = each[rank]
                found = run(source.clone())
                torch.cuda.synchronize()
                if not same(found, expected):
                    problems.append(f"{dtype} {size}: {difference(found, expected)}")
                into = torch.empty_like(source)
                recorded = capture(partial(copy_and_run, run, source, into))
                graphs.append((recorded, source, into, expected, dtype, size))  # which reads and writes both
        generator = torch.Generator().manual_seed(1)
        for number in torch.randint(len(graphs), (400,), generator=generator).tolist():
            graphs[number][0].replay()
        torch.cuda.synchronize()
        for graph, _, into, expected, dtype, size in graphs:
            graph.replay()
            torch.cuda.synchronize()
            if not same(into, expected):
                problems.append(f"{dtype} {size}, recorded: {difference(into, expected)}")
        say(f"{name}: {len(graphs)} sizes and dtypes, {'right' if not problems else '; '.join(problems)}")
        if problems:
            wrong.append(name)
    return wrong


def measure(device: torch.device, kernels: Kernels, say: Callable[[str], None]) -> None:
    """A table of microseconds by size and kernel."""
    say("us per call      " + "".join(f"{name:>13}" for name in kernels))
    times: dict[str, dict[int, float]] = {name: {} for name in kernels}
    for size in SIZES:
        x = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
        for name, (run, least, most) in kernels.items():
            if least <= size <= most:
                times[name][size] = timed(run, x)
        row = [f"{times[name][size]:13.2f}" if size in times[name] else " " * 13 for name in kernels]
        say(f"{size:>10} bytes " + "".join(row))
    for name in kernels:
        faster = [size for size in times[name] if times[name][size] < times["NCCL"][size]]
        if name != "NCCL":
            say(f"{name}: faster than NCCL at {', '.join(map(str, faster)) or 'no size'}")
    both = [size for size in times["two"] if size in times["one"] and times["one"][size] <= times["two"][size]]
    say(f"one shot is at least as fast as two up to {max(both, default=0)}")


def check_norms(rank: int, ranks: int, device: torch.device, say: Callable[[str], None]) -> list[str]:
    """Compares sums with the norm after them with the same apart; what is wrong, if anything."""
    problems = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        own = offered(device)
        for rows in (1, 2, 3, 16, 64, 128, 64, 1):
            num_bytes = rows * HIDDEN * dtype.itemsize
            each = [values(num_bytes, dtype, device, 10 * rows + one).view(rows, HIDDEN) for one in range(ranks)]
            residual, weight = values(num_bytes, dtype, device, 7).view(rows, HIDDEN), each[0][0].clone()
            total = residual + sum_of(each)
            found = own.add_rms_norm(each[rank].clone(), residual, weight, 1e-6)
            torch.cuda.synchronize()
            if found is None or not same(found[1].flatten(), total.flatten()):
                problems.append(f"{dtype} {rows} rows: the total")
                continue
            wanted = rms_norm(total.double(), weight.double(), 1e-6)
            off = ((found[0].double() - wanted).norm() / wanted.norm()).item()
            if off > 2 * torch.finfo(dtype).eps:
                problems.append(f"{dtype} {rows} rows: the norm is off by {off:.2g}")
    say(f"sum, add and norm: {'right' if not problems else '; '.join(problems)}")
    return problems


def measure_norms(device: torch.device, say: Callable[[str], None]) -> None:
    """A table of microseconds of sum, add and norm, at once and apart, by rows of 4,096 values in bfloat16."""
    own, weight = offered(device), torch.ones(HIDDEN, dtype=torch.bfloat16, device=device)
    say("us per call      at once        apart")
    for rows in (1, 4, 16, 32, 64, 96, 128, 192, 256):
        x = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16, device=device)
        residual = torch.zeros_like(x)
        at_once = timed(lambda x: own.add_rms_norm(x, residual, weight, 1e-6), x)  # noqa: B023
        apart = timed(lambda x: add_rms_norm(own(x), residual, weight, 1e-6), x)  # noqa: B023
        say(f"{rows:>10} rows {at_once:13.2f}{apart:13.2f}")


def offered(device: torch.device) -> PeerAllReduce:
    """What the platform has for the ranks that are joined."""
    found = offer(dist.group.WORLD, device)
    assert isinstance(found, PeerAllReduce)
    return found


def timed(run: Run, x: Tensor) -> float:
    """Microseconds of a call."""
    graph = capture(lambda: [run(x) for _ in range(CALLS)])
    graph.replay()
    took: list[float] = []
    for _ in range(REPLAYS):
        dist.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()  # the ranks are in step from here on
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(start.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(took)


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of what ``run`` launches, after it ran once."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def copy_and_run(run: Run, source: Tensor, into: Tensor) -> None:
    """Sums ``source`` into ``into``."""
    into.copy_(source)
    run(into)


def values(size: int, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """``size`` bytes of random values."""
    generator = torch.Generator(device).manual_seed(1000 + seed)
    return torch.randn(size // dtype.itemsize, generator=generator, device=device).to(dtype)


def sum_of(each: list[Tensor]) -> Tensor:
    """In order, in float32, rounded once."""
    total = each[0].float()
    for more in each[1:]:
        total = total + more.float()
    return total.to(each[0].dtype)


def same(found: object, expected: Tensor) -> bool:
    """Whether all bits are."""
    return isinstance(found, Tensor) and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def difference(found: Any, expected: Tensor) -> str:
    """Where, and how large."""
    off = (found != expected).nonzero().flatten()
    first = int(off[0]) if len(off) else -1
    return f"{len(off)} of {expected.numel()} differ, the first at {first}: {found[first]} for {expected[first]}"


def print_now(line: str) -> None:
    """Prints a line at once, so that it is seen where the next step hangs."""
    print(line, flush=True)


def ignore(line: str) -> None:
    """For ranks that don't print."""


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
