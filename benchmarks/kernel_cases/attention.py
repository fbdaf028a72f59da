"""Paged attention: decode, prefill, and both in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kernel_cases.harness import SHAPES, TINY, Case, Named, Shape
from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.attend import attend_plain
from llmk_triton.attention import TritonAttention
from llmk_triton.tiles import Tile

BLOCK = 16
ROTATED_BYTES = 256 << 20
"""What the sets of a case hold together at least: more than a cache of the device does."""

SWEPT_DECODE = (
    *((64, 4, 3, 2), (64, 4, 3, 4), (64, 4, 4, 2), (64, 4, 4, 4), (64, 4, 5, 2)),
    *((32, 4, 4, 4), (32, 2, 4, 4), (32, 2, 5, 8), (64, 2, 4, 4), (128, 4, 3, 2), (128, 8, 3, 2)),
)
"""Keys, warps, stages, programs per core."""

SWEPT_PREFILL = ((128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 3), (64, 64, 4, 3), (128, 32, 8, 4))

DECODE = ((1, 256), (1, 2048), (1, 16384), (8, 1024), (64, 400), (64, 2048), (256, 512))
PREFILL = ((1, 2048, 2048), (16, 2048, 2048), (1, 512, 8192))


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
    backend: TritonAttention, requests: int, queries: int | Sequence[int], length: int, sets: int, device: torch.device
) -> Steps:
    """Requests of up to ``length`` tokens, of which the last ``queries`` are the step's."""
    query, dtype = backend.query, getattr(torch, backend.query.dtype)
    counts = [queries] * requests if isinstance(queries, int) else list(queries)
    blocks = -(-length // BLOCK)
    layout = backend.cache_layout(sets * requests * blocks)
    cache = torch.randn(layout.shape, dtype=dtype, device=device)
    q = torch.randn(sum(counts), query.num_heads, query.head_dim, device=device).to(dtype)
    order = torch.randperm(sets * requests * blocks, device=device).to(torch.int32).view(sets, requests, blocks)
    lengths = torch.tensor([length - 7 * (i % 3) * (length > 64) for i in range(requests)])
    starts = list(accumulate(counts, initial=0))
    index = []
    for table in order:
        places = [torch.arange(int(n) - c, int(n), device=device) for n, c in zip(lengths, counts, strict=True)]
        slots = [table[i, p // BLOCK].long() * BLOCK + p % BLOCK for i, p in enumerate(places)]
        index.append(
            CacheStep(
                query_start=torch.tensor(starts, dtype=torch.int32, device=device),
                seq_lens=lengths.to(device, torch.int32),
                block_table=table.contiguous(),
                slot_mapping=torch.cat(slots),
                num_requests=requests,
                num_tokens=starts[-1],
                max_query_len=max(counts),
                max_seq_len=length,
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
    """Decode and prefill of all models."""
    for shape in TINY if tiny else SHAPES:
        for requests, length in ((2, 80),) if tiny else DECODE:
            name = f"attention decode {shape.name} {requests}x{length}"
            yield name, partial(_case, shape, requests, 1, length, device)
    if tiny:
        return
    shape = SHAPES[1]
    for requests, queries, length in PREFILL:
        name = f"attention prefill {shape.name} {requests}x{queries} of {length}"
        yield name, partial(_case, shape, requests, queries, length, device)
    yield f"attention mixed {shape.name} 512 + 32x1", partial(_case, shape, 33, [512] + [1] * 32, 1024, device)
    yield "attention replayed for another step", partial(_replayed, shape, device)
    yield "attention 100 times alike", partial(_repeated, shape, device)
    yield "attention deterministic", partial(_deterministic, shape, device)


def sweep(device: torch.device) -> Iterator[Named]:
    """Decode and prefill over tiles, to choose those that ship."""
    for requests, length in ((1, 256), (1, 4096), (8, 1024), (64, 400), (64, 2048)):
        for keys, warps, stages, programs in SWEPT_DECODE:
            name = f"decode {requests}x{length} {keys}k {warps}w {stages}s {programs}p"
            tiles = {"decode_tile": Tile(16, keys, warps, stages), "programs_per_core": programs}
            yield name, partial(_case, SHAPES[1], requests, 1, length, device, **tiles)
        yield (
            f"decode {requests}x{length} tokens before heads",
            partial(_case, SHAPES[1], requests, 1, length, device, tokens_first=True),
        )
    for rows, keys, warps, stages in SWEPT_PREFILL:
        name = f"prefill {rows}x{keys} {warps}w {stages}s"
        tile = Tile(rows, keys, warps, stages)
        yield name, partial(_case, SHAPES[1], 4, 2048, 2048, device, prefill_tile=tile)


def _case(
    shape: Shape,
    requests: int,
    queries: int | Sequence[int],
    length: int,
    device: torch.device,
    tokens_first: bool = False,
    **changes: Any,
) -> Case:
    backend = TritonAttention(attention_query(shape), device)
    for attribute, value in changes.items():
        setattr(backend, attribute, value)
    row = 2 * shape.dtype.itemsize * shape.kv_heads * shape.head_dim
    sets = max(1, min(32, ROTATED_BYTES // (requests * length * row)))
    steps = random_steps(backend, requests, queries, length, sets, device)
    if tokens_first:
        steps.cache = steps.cache.transpose(2, 3).contiguous().transpose(2, 3)
    meta = [backend.prepare(step) for step in steps.index]
    counts = [queries] * requests if isinstance(queries, int) else queries
    seen = sum(c * (length - c) + c * (c + 1) // 2 for c in counts)
    return Case(
        lambda i: backend.run(steps.q, steps.cache, meta[i]),
        lambda: expected(backend, steps),
        requests * length * row + 2 * steps.q.nbytes,
        4 * shape.heads * shape.head_dim * seen,
        sets,
    )


def _replayed(shape: Shape, device: torch.device) -> Case:
    """A decode step captured at an upper bound, then replayed for another step of the same padded shape."""
    backend = TritonAttention(attention_query(shape), device)
    steps = random_steps(backend, 8, 1, 4096, 1, device)
    step = steps.index[0]
    meta = backend.prepare(step)
    backend.run(steps.q, steps.cache, meta)
    graph = torch.get_device_module(device).CUDAGraph()
    with torch.get_device_module(device).graph(graph):
        out = backend.run(steps.q, steps.cache, meta)
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
