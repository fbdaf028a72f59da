"""Paged attention: decode, prefill, and both in one step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from kernel_cases.harness import SHAPES, TINY, Bench, Case, Named, Shape
from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.attention.contiguous import attend_plain
from llmk.reference.composites import make_qk_norm_rope_write_kv
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import rope
from llmk_triton.attention.backend import TritonAttention, qk_norm_rope_attention
from llmk_triton.common.targets import SPECIALIZED_TILES, DecodeConfig, Tile, current_target
from llmk_triton.latent.backend import LatentAttention

BLOCK = 16
ROTATED_BYTES = 256 << 20
"""What the sets of a case hold together at least: more than a cache of the device does."""
BOUND = 4096
"""Tokens that a recorded step is ready for, whatever its requests have."""

DECODE = ((1, 256), (1, 400), (1, 1100), (8, 400), (64, 256), (64, 400), (64, 1100), (128, 1100), (256, 1100))
LONG = ((1, 4096), (1, 16384), (64, 2048))
PREFILL = ((1, 2048, 2048), (4, 2048, 2048), (16, 2048, 2048), (1, 512, 8192), (4, 2048, 8192))
"""Requests, queries, tokens."""

SWEPT_DECODE = (
    *((0, 1, 256), (0, 1, 384), (0, 8, 400), (0, 64, 256), (0, 64, 384), (0, 64, 640), (0, 256, 1100)),
    *((1, 1, 256), (1, 1, 384), (1, 8, 400), (1, 64, 256), (1, 64, 384), (1, 64, 640), (1, 256, 1100)),
    *((1, 128, 2100), (2, 1, 256), (2, 64, 384)),
)
"""Which shape, requests, tokens. Of more than 2,048 tokens so many are shared."""
SWEPT_TILES = (
    *((64, 4, 2, 128, 4), (64, 4, 3, 128, 3), (64, 4, 3, 0, 3), (32, 4, 3, 128, 4), (32, 4, 4, 128, 4)),
    *((32, 2, 3, 168, 5), (32, 2, 4, 0, 4), (32, 1, 3, 0, 6), (16, 1, 4, 0, 7), (128, 8, 2, 128, 2)),
)
"""Keys, warps, stages, registers, programs per core."""
SWEPT_PARTS = (64, 128, 256)
"""Keys that a program takes at least, where requests are few."""
SWEPT_PREFILL = (
    *((128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3)),
    *((64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 4, 2), (128, 64, 4, 3)),
)
"""Rows, keys, warps, stages."""


@dataclass(slots=True)
class Steps:
    """A cache, and several steps on different blocks of it."""

    cache: Tensor
    q: Tensor
    index: list[CacheStep]


def attention_query(shape: Shape, **changes: Any) -> AttentionQuery:
    """The query of a model."""
    facts = PlatformFacts(name="this", arch="any", device_type="any", features=frozenset({"triton"}))
    return AttentionQuery(
        **{
            "platform": facts,
            "site": "attention",
            "dtype": str(shape.dtype).removeprefix("torch."),
            "num_heads": shape.heads,
            "num_kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "block_size": BLOCK,
            "cache_dtype": str(shape.dtype).removeprefix("torch."),
            "scale": shape.head_dim**-0.5,
        }
        | changes
    )


def random_steps(
    backend: TritonAttention | LatentAttention,
    requests: int,
    queries: int | Sequence[int],
    length: int,
    sets: int,
    device: torch.device,
    *,
    bound: int = 0,
    shared: int = 0,
) -> Steps:
    """Requests of up to ``length`` tokens; the last ``queries`` of them are the step's, the first ``shared`` (whole
    blocks) those of the first request. ``bound`` is the step's, if that is more."""
    query, dtype = backend.query, getattr(torch, backend.query.dtype)
    counts = [queries] * requests if isinstance(queries, int) else list(queries)
    blocks = -(-length // BLOCK)
    layout = backend.cache_layout(sets * requests * blocks)
    cache = torch.empty(layout.shape, dtype=dtype, device=device).normal_()
    q = torch.randn(sum(counts), query.num_heads, query.head_dim, device=device).to(dtype)
    order = torch.randperm(sets * requests * blocks, device=device).to(torch.int32).view(sets, requests, blocks)
    order[:, :, : shared // BLOCK] = order[:, :1, : shared // BLOCK]
    unlike = [length - 7 * (i % 3) * (length > 64) for i in range(requests)]
    lengths = torch.tensor([max(n, count) for n, count in zip(unlike, counts, strict=True)])
    starts = list(accumulate(counts, initial=0))
    index = []
    for table in order:
        places = [torch.arange(int(n) - c, int(n), device=device) for n, c in zip(lengths, counts, strict=True)]
        slots = [table[i, p // BLOCK].long() * BLOCK + p % BLOCK for i, p in enumerate(places)]
        index.append(
            CacheStep(
                query_start=torch.tensor(starts, dtype=torch.int32, device=device),
                seq_lens=lengths.to(device, torch.int32),
                block_table=F.pad(table, (0, max(0, -(-bound // BLOCK) - blocks))),
                slot_mapping=torch.cat(slots),
                num_requests=requests,
                num_tokens=starts[-1],
                max_query_len=max(counts),
                max_seq_len=max(length, bound),
                block_size=BLOCK,
            )
        )
    return Steps(cache, q, index)


def expected(backend: TritonAttention, steps: Steps, which: int = 0) -> Tensor:
    """Float32 attention of a step, request by request."""
    query, step, out = backend.query, steps.index[which], []
    starts, lengths = step.query_start.tolist(), step.seq_lens.tolist()
    for i, length in enumerate(lengths):
        q = steps.q[starts[i] : starts[i + 1]]
        blocks = step.block_table[i, : -(-length // BLOCK)].long()
        # [blocks, 2, heads, tokens, size] to [2, tokens, heads, size]
        kv = steps.cache[blocks].permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length].float()
        position = torch.arange(length - q.shape[0], length, device=q.device)[:, None]
        allowed = torch.arange(length, device=q.device) <= position
        out.append(attend_plain(q[None].float(), kv[:1], kv[1:], allowed[None], query.scale)[0])
    return torch.cat(out)


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """Decode, within bounds that are far above true lengths, and prefill."""
    for shape in TINY if tiny else SHAPES:
        for requests, length in ((2, 80),) if tiny else DECODE:
            name = f"attention decode {shape.name} {requests}x{length}"
            yield name, partial(_case, shape, requests, 1, length, device, bound=BOUND)
            yield f"{name} whole", partial(_whole, shape, requests, length, device)
        yield f"attention schedule {shape.name}", partial(_schedule, shape, device)
    if tiny:
        return
    shape = SHAPES[1]
    for requests, length in LONG:
        yield f"attention decode {shape.name} {requests}x{length}", partial(_case, shape, requests, 1, length, device)
    for each in SHAPES:
        name = f"attention decode {each.name} 128x{2048 + 64} of which 2048 shared"
        yield name, partial(_case, each, 128, 1, 2048 + 64, device, bound=BOUND, shared=2048)
    for requests, queries, length in PREFILL:
        name = f"attention prefill {shape.name} {requests}x{queries} of {length}"
        yield name, partial(_case, shape, requests, queries, length, device)
        if current_target().arch == 90:
            tile = SPECIALIZED_TILES[shape.head_dim]
            specialized = partial(_case, shape, requests, queries, length, device, specialized=tile)
            yield f"{name}, specialized warps", specialized
    yield f"attention mixed {shape.name} 512 + 32x1", partial(_case, shape, 33, [512] + [1] * 32, 1024, device)
    yield "attention replayed for another step", partial(_replayed, shape, device)
    yield "attention 100 times alike", partial(_repeated, shape, device)
    yield "attention deterministic", partial(_deterministic, shape, device)


def sweep(bench: Bench, only: re.Pattern[str]) -> None:
    """Times decode steps with norm, rotation and write over tiles, parts and programs per multiprocessor, then prefill
    over tiles; prints the best few of each case whose name has ``only``."""
    for which, requests, length in SWEPT_DECODE:
        name = f"decode {SHAPES[which].name} {requests}x{length}"
        if not only.search(name):
            continue
        whole = Whole(SHAPES[which], requests, length, bench.device, shared=2048 if length > 2048 else 0)
        few = requests * SHAPES[which].kv_heads <= 64
        configs: list[dict[str, Any]] = [{}]
        for keys, warps, stages, registers, programs in SWEPT_TILES:
            tile = Tile(16, keys, warps, stages, registers)
            ways = [DecodeConfig(tile, programs, least) for least in (SWEPT_PARTS if few else SWEPT_PARTS[-1:])]
            configs += [{"few": way, "many": way} for way in ways]
        keep_best(bench, name, [(str(config), whole.op(**config)) for config in configs], whole.sets)
    for requests, queries, length in PREFILL[1:4:2]:
        name, made = f"prefill {requests}x{queries} of {length}", []
        if not only.search(name):
            continue
        for rows, keys, warps, stages in SWEPT_PREFILL:
            tile = Tile(rows, keys, warps, stages)
            case = _case(SHAPES[1], requests, queries, length, bench.device, prefill_tile=tile)
            made.append((str(tile), case.run))
        keep_best(bench, name, made)


def keep_best(bench: Bench, case: str, configs: list[tuple[str, Callable[[int], Tensor]]], sets: int = 1) -> None:
    """Times what each config runs, compiled side by side; the first is what is chosen now."""
    if time.monotonic() - bench.started > bench.seconds:
        print(f"{case:<28} not run: the time is up")
        return

    def first(run: Callable[[int], Tensor]) -> Tensor | None:
        try:
            return run(0).float()
        except triton.runtime.errors.OutOfResources:
            return None

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(first, [run for _, run in configs]))
    expected, times = found[0], []
    assert expected is not None
    for (name, run), result in zip(configs, found, strict=True):
        if result is not None and (result - expected).norm() <= 8e-3 * expected.norm():
            times.append((1e6 * bench.time(run, sets), name))
        else:
            print(f"{case} {name}: {'too large' if result is None else 'WRONG'}")
    print(f"{case:<28} now {times[0][0]:8.2f} us")
    for microseconds, name in sorted(times)[:4]:
        print(f"{microseconds:41.2f} us  {name}", flush=True)


def _case(
    shape: Shape,
    requests: int,
    queries: int | Sequence[int],
    length: int,
    device: torch.device,
    *,
    bound: int = 0,
    shared: int = 0,
    **changes: Any,
) -> Case:
    backend = _backend(shape, device, changes)
    row = 2 * shape.dtype.itemsize * shape.kv_heads * shape.head_dim
    least = row * (requests * (length - shared) + shared)
    sets = max(1, min(32, ROTATED_BYTES // least))
    steps = random_steps(backend, requests, queries, length, sets, device, bound=bound, shared=shared)
    meta = [backend.prepare(step) for step in steps.index]
    counts = [queries] * requests if isinstance(queries, int) else queries
    seen = sum(c * (length - c) + c * (c + 1) // 2 for c in counts)
    return Case(
        lambda i: backend.run(steps.q, steps.cache, meta[i]),
        lambda: expected(backend, steps),
        least + 2 * steps.q.nbytes,
        4 * shape.heads * shape.head_dim * seen,
        sets,
    )


class Whole:
    """Norm, rotation, write and attention of decode steps."""

    def __init__(self, shape: Shape, requests: int, length: int, device: torch.device, *, shared: int = 0) -> None:
        self.shape, self.device = shape, device
        backend = TritonAttention(attention_query(shape), device)
        row = 2 * shape.dtype.itemsize * shape.kv_heads * shape.head_dim
        self.bytes = row * (requests * (length - shared) + shared)
        self.sets = max(1, min(32, ROTATED_BYTES // self.bytes))
        self.steps = random_steps(backend, requests, 1, length, self.sets, device, bound=BOUND, shared=shared)
        sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
        qkv = torch.randn(requests, sum(sizes), shape.head_dim, device=device).to(shape.dtype)
        weight = torch.randn(shape.head_dim, device=device).to(shape.dtype)
        self.bytes += qkv.nbytes + self.steps.q.nbytes
        self.given = (
            *(*qkv.split_with_sizes(sizes, 1), weight, weight, 1e-6),
            torch.randint(0, BOUND, (requests,), device=device),
            torch.randn(BOUND, shape.head_dim, device=device),
            self.steps.cache,
        )

    def op(self, **changes: Any) -> Callable[[int], Tensor]:
        """What runs one of the steps by a backend with ``changes``."""
        backend = _backend(self.shape, self.device, changes)
        meta = [backend.prepare(step) for step in self.steps.index]
        return lambda i: qk_norm_rope_attention(*self.given, meta[i])

    def expected(self) -> Tensor:
        """By the op's parts; what the op wrote is theirs, too."""
        backend, cache, step = _backend(self.shape, self.device, {}), self.steps.cache, self.steps.index[0]
        places = (step.slot_mapping // BLOCK, slice(None), slice(None), step.slot_mapping % BLOCK)
        stored = cache[places]
        write = make_qk_norm_rope_write_kv({"rms_norm": rms_norm, "rope": rope, "attention.write": backend.write})
        q = write(*self.given, backend.prepare(step))
        torch.testing.assert_close(stored, cache[places], rtol=2e-2, atol=2e-2)
        return expected(backend, Steps(cache, q, [step]))


def _backend(shape: Shape, device: torch.device, changes: dict[str, Any]) -> TritonAttention:
    backend = TritonAttention(attention_query(shape), device)
    for attribute, value in changes.items():
        setattr(backend, attribute, value)
    return backend


def _whole(shape: Shape, requests: int, length: int, device: torch.device) -> Case:
    """A decode step by one op, against its parts."""
    whole = Whole(shape, requests, length, device)
    return Case(whole.op(), whole.expected, whole.bytes, sets=whole.sets)


def _schedule(shape: Shape, device: torch.device) -> Case:
    """What preparing a decode step costs, once for all layers."""
    backend, requests = TritonAttention(attention_query(shape), device), 256
    (step,) = random_steps(backend, requests, 1, 1100, 1, device, bound=BOUND).index

    def spans(i: int) -> Tensor:
        schedule = backend.prepare(step).schedule
        assert schedule is not None
        return schedule.spans

    # So many requests of nearly one length leave nothing to split.
    return Case(spans, lambda: torch.arange(1 + requests, device=device), 0)


def _replayed(shape: Shape, device: torch.device) -> Case:
    """A decode step captured at an upper bound, then replayed for another step of the same padded shape."""
    backend = TritonAttention(attention_query(shape), device)
    steps = random_steps(backend, 8, 1, 4096, 1, device)
    step = steps.index[0]
    backend.run(steps.q, steps.cache, backend.prepare(step))
    graph = torch.get_device_module(device).CUDAGraph()
    with torch.get_device_module(device).graph(graph):
        out = backend.run(steps.q, steps.cache, backend.prepare(step))
    step.seq_lens.copy_(torch.tensor([1, 100, 4096, 65, 17, 2000, 0, 0]))
    step.query_start.copy_(torch.tensor([0, 1, 2, 3, 4, 5, 6, 6, 6]))

    def run(i: int) -> Tensor:
        if not torch.get_device_module(device).is_current_stream_capturing():
            graph.replay()
        return out

    def answer() -> Tensor:
        true = Steps(steps.cache, steps.q[:6], [step])
        step.seq_lens, step.query_start = step.seq_lens[:6], step.query_start[:7]
        return torch.cat([expected(backend, true), torch.zeros_like(steps.q[6:])])

    return Case(run, answer, 0)


def _repeated(shape: Shape, device: torch.device) -> Case:
    """Splits merge in one order whoever is last, so a result that changes tells of a race."""
    backend = TritonAttention(attention_query(shape), device)
    steps = random_steps(backend, 3, 1, 8192, 1, device)
    meta = backend.prepare(steps.index[0])
    first = backend.run(steps.q, steps.cache, meta)

    def run(i: int) -> Tensor:
        return torch.stack([backend.run(steps.q, steps.cache, meta) for _ in range(100)]) - first

    return Case(run, lambda: torch.zeros(100, *first.shape, device=device), 0, tolerance=0)


def _deterministic(shape: Shape, device: torch.device) -> Case:
    """A request's rows are the same, bit for bit, alone as beside others, decoded as prefilled."""
    backend = TritonAttention(attention_query(shape, deterministic=True), device)
    steps = random_steps(backend, 4, [300, 1, 77, 1], 2048, 1, device)
    step = steps.index[0]
    whole = backend.prepare(step)
    alone = CacheStep(
        query_start=torch.tensor([0, 1], dtype=torch.int32, device=device),
        seq_lens=step.seq_lens[:1],
        block_table=step.block_table[:1],
        slot_mapping=step.slot_mapping[299:300],
        num_requests=1,
        num_tokens=1,
        max_query_len=1,
        max_seq_len=2048,
        block_size=BLOCK,
    )
    part = backend.prepare(alone)
    return Case(
        lambda i: backend.run(steps.q[299:300], steps.cache, part),
        lambda: backend.run(steps.q, steps.cache, whole)[299:300],
        0,
        tolerance=0,
    )
