"""Steps of paged attention over a cache that contains NaN wherever nothing was written, and their expected results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionBackend, AttentionQuery, CacheLayout, CacheStep
from llmk.api.cache import SCALED_BITS
from llmk.reference.attention.contiguous import attend_plain
from llmk_testing.tolerance import Bound, Right, check

Work = Sequence[tuple[int, int, int]]
"""Requests of a step: (request, first token, end)."""

OF_PADDING = 7.0

_NEAR, _NO_BLOCK = 512, 1 << 30
"""Tokens before a window that a kernel may read, since tiles start there, and what block tables have before these."""

FP8_SCALES = (0.25, 2.0)
"""K and V scales of an fp8 cache; powers of two, so that dividing by them is exact."""


def allocate(layout: CacheLayout, device: torch.device, stride: int = 1) -> Tensor:
    """A cache filled with NaN, with a block stride of ``stride`` times the block size. Bytes are all ones, so that
    scales among them are NaN."""
    shape, dtype = list(layout.shape), getattr(torch, layout.dtype)
    shape[layout.block_dim : layout.block_dim + 1] = [shape[layout.block_dim], stride]
    # What lies between the blocks is never touched, so that a host need not have the memory.
    cache = torch.empty(shape, dtype=dtype, device=device).select(layout.block_dim + 1, 0)
    if dtype.itemsize == 1:
        cache.view(torch.uint8).fill_(255)  # NaN in both dtypes of fp8
    else:
        cache.fill_(torch.nan)
    return cache


class Paged:
    """Requests with known queries, keys and values, on blocks in random order.

    All rows of a request are drawn once, so that a token has the same in any step. Unused entries of a step's block
    table name a block of NaN, or none at all far before a window. The first request starts in block 0, and the last
    block of the cache belongs to no request.

    Args:
        requests: how many.
        longest: most tokens per request.
        shared: number of leading blocks that requests share: the first so many (``sharing``), or all.
        stride: see :func:`allocate`.
        blocks: how many the cache has, if more than are needed; then all but the first one are the last of it.
    """

    def __init__(
        self,
        query: AttentionQuery,
        backend: AttentionBackend,
        device: torch.device,
        random: torch.Generator,
        *,
        requests: int,
        longest: int,
        shared: int = 0,
        sharing: int | None = None,
        stride: int = 1,
        blocks: int = 0,
    ) -> None:
        self.query, self.backend, self.device = query, backend, device
        dtype, size = getattr(torch, query.dtype), query.block_size
        heads, value_dim = (query.num_heads, query.head_dim), query.value_dim or query.head_dim
        self.shapes = [heads, (query.num_kv_heads, query.head_dim), (query.num_kv_heads, value_dim)]
        if query.latent_dim is not None:
            self.shapes.pop()
        self.sizes = [count * width for count, width in self.shapes]
        self.rows = torch.randn(requests, longest, sum(self.sizes), generator=random).to(dtype)
        self.rows[:sharing, : shared * size, self.sizes[0] :] = self.rows[:1, : shared * size, self.sizes[0] :]
        self.sinks = torch.randn(query.num_heads, generator=random) if query.sinks else None
        # Copied once: a step that is recorded may not copy from the host.
        self._placed_sinks = None if self.sinks is None else self.sinks.to(device)
        self.slopes = torch.rand(query.num_heads, generator=random) / 4 if query.alibi else None
        self._placed_slopes: dict[str, Any] = {} if self.slopes is None else {"slopes": self.slopes.to(device)}
        each = -(-longest // size)
        blocks = max(blocks, requests * each + 2)
        self.nobodys = blocks - 1
        order = torch.randperm(requests * each + 1, generator=random)
        order += self.nobodys - len(order)
        order[order == 0], order[0] = order[0].clone(), 0
        self.tables = order[: requests * each].view(requests, each)
        self.tables[:sharing, :shared] = self.tables[:1, :shared]
        self.poison = int(order[-1])
        self.cache = allocate(backend.cache_layout(blocks), device, stride)
        self.kept = [torch.full((requests, longest, *shape), torch.nan) for shape in self.shapes[1:]]
        self.scales, self.scaled = (1.0, 1.0), dict[str, Any]()
        self.rescale(FP8_SCALES)

    def rescale(self, scales: tuple[float, float]) -> None:
        """Gives the layer other scales of keys and values, if its cache is fp8, before anything is written."""
        if self.query.cache_dtype.startswith("float8"):
            self.scales, self.scaled = scales, {"scales": scales}

    def sink(self, sinks: Tensor) -> None:
        """Gives the layer other sinks."""
        self.sinks, self._placed_sinks = sinks, sinks.to(self.device)

    def step(self, work: Work, *, padding: int = 0, beyond: int = 0, on_host: bool = True) -> CacheStep:
        """The step's index tensors, followed by ``padding`` padding requests and tokens; ``beyond`` is added to the
        upper bound of lengths."""
        size, counts = self.query.block_size, [stop - start for _, start, stop in work]
        lengths = [stop for _, _, stop in work]
        widest = -(-(max(lengths) + beyond) // size)
        table = torch.full((len(work) + padding, widest), self.poison, dtype=torch.int32)
        for row, (request, start, stop) in enumerate(work):
            used = -(-stop // size)
            first = max(0, self.query.first_visible(start)) // size
            table[row, first:used] = self.tables[request, first:used].to(torch.int32)
            table[row, : max(0, first - _NEAR // size)] = _NO_BLOCK
        slots = [self.slots(*tokens) for tokens in work]
        starts = list(accumulate(counts, initial=0))
        return CacheStep(
            query_start=torch.tensor(starts + starts[-1:] * padding, dtype=torch.int32, device=self.device),
            seq_lens=torch.tensor(lengths + [0] * padding, dtype=torch.int32, device=self.device),
            block_table=table.to(self.device),
            slot_mapping=torch.cat([*slots, torch.full((padding,), -1)]).to(self.device),
            num_requests=len(work) + padding,
            num_tokens=starts[-1] + padding,
            max_query_len=max(counts),
            max_seq_len=max(lengths) + beyond,
            block_size=size,
            host_query_lens=counts if on_host else (),
            host_seq_lens=lengths if on_host else (),
        )

    def slots(self, request: int, start: int, stop: int) -> Tensor:
        """Slots of a request's tokens, int64, on the host."""
        positions, size = torch.arange(start, stop), self.query.block_size
        return self.tables[request, positions // size] * size + positions % size

    def given(self, work: Work, *, padding: int = 0) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of a step, on the device: slices of one tensor, as a packed QKV projection returns
        them."""
        parts = self.parts(self.own_rows(work, padding).to(self.device))
        return parts[0], parts[1], parts[2] if len(parts) == 3 else None

    def parts(self, rows: Tensor) -> list[Tensor]:
        """Rows of all heads as queries, keys and values, ``[tokens, heads, head_dim or value_dim]``."""
        split = rows.split_with_sizes(self.sizes, 1)
        return [part.unflatten(1, shape) for part, shape in zip(split, self.shapes, strict=True)]

    def own_rows(self, work: Work, padding: int = 0) -> Tensor:
        """The tokens' queries, keys and values as one matrix, on the host. In padding, queries are NaN; keys and values
        are not, so that a write of them is visible in a cache of NaN."""
        rows = [self.rows[request, start:stop] for request, start, stop in work]
        rows.append(torch.full((padding, self.rows.shape[2]), OF_PADDING, dtype=self.rows.dtype))
        rows[-1][:, : self.sizes[0]] = torch.nan
        return torch.cat(rows)

    def play(self, work: Work, *, padding: int = 0, beyond: int = 0, on_host: bool = True) -> Tensor:
        """Calls prepare, write and run as the engine does."""
        step = self.step(work, padding=padding, beyond=beyond, on_host=on_host)
        return self.run(work, self.backend.prepare(step), padding=padding)

    def write(self, work: Work) -> None:
        """Calls prepare and write, and records what was written."""
        _, key, value = self.given(work)
        self.backend.write(key, value, self.cache, self.backend.prepare(self.step(work)), **self.scaled)
        self.keep_own(work)

    def run(self, work: Work, meta: Any, *, padding: int = 0) -> Tensor:
        """Calls write and run, with prepared metadata."""
        q, key, value = self.given(work, padding=padding)
        self.backend.write(key, value, self.cache, meta, **self.scaled)
        return self.attend(q, meta)

    def attend(self, q: Tensor, meta: Any) -> Tensor:
        """Calls the backend's ``run``."""
        return self.backend.run(q, self.cache, meta, sinks=self._placed_sinks, **self._placed_slopes, **self.scaled)

    def keep(self, work: Work, key: Tensor, value: Tensor | None) -> None:
        """Records the expected contents of the cache for these tokens, ``[tokens, kv_heads, head_dim]`` on the host."""
        row = 0
        given = [key] if value is None else [key, value]
        for request, start, stop in work:
            for kept, rows, scale in zip(self.kept, given, self.scales, strict=False):
                kept[request, start:stop] = _rounded(rows[row : row + stop - start], self.query.cache_dtype, scale)
            row += stop - start

    def right(self, work: Work, q: Tensor | None = None) -> Tensor:
        """The expected attention of these tokens in float32, over the recorded keys and values. ``q`` are their queries
        on the host; ``None``: the requests' own."""
        spec, out, row = self.query, [], 0
        for request, start, stop in work:
            position, key = torch.arange(start, stop)[:, None], torch.arange(stop)
            allowed = (key <= position) & (key >= spec.first_visible(position))
            rows = self.parts(self.rows[request, start:stop])[0] if q is None else q[row : row + stop - start]
            kept = [torch.where(allowed.any(0)[:, None, None], each[request, :stop], 0.0)[None] for each in self.kept]
            distances = (key - position)[None] if spec.alibi else None
            options: dict[str, Any] = {"sinks": self.sinks, "slopes": self.slopes, "distances": distances}
            masked = allowed[None], spec.scale, spec.softcap
            attended = attend_plain(rows.float()[None], kept[0], kept[-1], *masked, **options)
            out.append(attended[0])
            row += stop - start
        return torch.cat(out)[..., : spec.latent_dim]

    def fill(self, number: float) -> None:
        """Puts a number everywhere in the cache; bytes of a packed one are all alike, too."""
        if self.cache.dtype.is_floating_point:
            largest = torch.finfo(self.cache.dtype).max if self.cache.dtype.itemsize == 1 else number
            self.cache.copy_(torch.full((), min(number, largest)).expand(self.cache.shape).to(self.cache.dtype))
        else:
            self.cache.fill_(int(min(number, 75.0)))

    def keep_own(self, work: Work) -> None:
        """Records the requests' own keys and values as the cache's contents."""
        _, key, *value = self.parts(self.own_rows(work))
        self.keep(work, key, value[0] if value else None)

    def check(self, out: Tensor, work: Work, what: str, bound: Bound | None = None) -> float:
        """Compares the result of a step's tokens, without padding, with the expected one; records what the step
        wrote. ``bound`` is as of :func:`llmk_testing.tolerance.check`."""
        self.keep_own(work)
        tokens = sum(stop - start for _, start, stop in work)
        return check(out[:tokens], Right(self.right(work), self.rows.dtype), f"{what}, {describe(work)}", bound)


def _rounded(vectors: Tensor, cache_dtype: str, scale: float) -> Tensor:
    """What a cache of a dtype makes of vectors, float32."""
    if bits := SCALED_BITS.get(cache_dtype):
        limit = (1 << (bits - 1)) - 1
        own = vectors.float().abs().amax(-1, keepdim=True) / limit
        own[own == 0] = 1.0
        return (vectors.float() / own).round() * own
    dtype: torch.dtype = getattr(torch, cache_dtype)
    stored = vectors.float() / scale
    if dtype.itemsize == 1:
        stored = stored.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return stored.to(dtype).float() * scale


def describe(work: Work) -> str:
    """A description of a step."""
    return "rows of requests that compute tokens " + ", ".join(
        f"{start}" if stop - start == 1 else f"{start}-{stop - 1}" for _, start, stop in work
    )


def history(*lengths: int) -> Work:
    """Prompts of these lengths, computed in one step."""
    return [(request, 0, length) for request, length in enumerate(lengths)]


def decode(*lengths: int) -> Work:
    """The next token of requests of these lengths."""
    return [(request, length, length + 1) for request, length in enumerate(lengths)]
