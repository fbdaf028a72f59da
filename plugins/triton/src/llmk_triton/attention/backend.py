"""The Triton backend of paged attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from llmk.api.attention import CacheLayout
from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk_triton.attention.decode import decode_kernel
from llmk_triton.attention.decode_schedule import Rule, Schedule
from llmk_triton.attention.padding import zero_padding
from llmk_triton.attention.prefill import prefill_kernel
from llmk_triton.attention.prefill_schedule import PrefillSchedule, schedule_prefill
from llmk_triton.attention.work_list import WorkList, list_work
from llmk_triton.attention.write import qk_norm_rope_write_kv, rows, strides, write
from llmk_triton.attention_support import rows_per_token
from llmk_triton.common import pdl
from llmk_triton.common.targets import (
    SPECIALIZED_ROWS,
    SPECIALIZED_TILES,
    DecodeConfig,
    SpecializedTile,
    Tile,
    current_target,
    decode_configs,
    dot_precision,
    num_multiprocessors,
    prefill_tile,
)

LAYOUT = "paged_hnd"
"""Dimensions of the cache: block, K or V, head, token, head_dim; where values have another width: block, head, token,
the elements of a key and of its value."""

_Tensors = tuple[Tensor, Tensor, Tensor, Tensor]
"""Out, query, cache, sinks."""

_MERGED, _MERGED_HEADS = 8, 32
"""Splits of a request whose partial results are loaded at a time in the split-K merge, for so many heads; fewer of more
heads."""


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step's attention metadata, for :meth:`TritonAttention.write` and :meth:`TritonAttention.run`.

    Attributes:
        prefills: work schedule of requests with several queries; ``None``: there are none.
        work: of those, the work whose keys are not split, for warps that specialize; ``None``: they don't.
        decoding, schedule: launch configuration and work schedule of requests with one query; ``None``: the decode
            kernel is not launched.
        partial, stats: buffers for the partial results of split keys; see
            :func:`llmk_triton.attention.decode.decode_kernel`. ``prefill_partial`` and ``prefill_stats`` are those of
            requests with several queries (:func:`llmk_triton.attention.prefill.prefill_kernel`).
    """

    backend: TritonAttention
    step: CacheStep
    prefills: PrefillSchedule | None
    work: WorkList | None = None
    prefill_partial: Tensor | None = None
    prefill_stats: Tensor | None = None
    decoding: DecodeConfig | None = None
    schedule: Schedule | None = None
    partial: Tensor | None = None
    stats: Tensor | None = None


@dataclass(frozen=True, slots=True)
class NewTokens:
    """A step's new keys and values, and the inputs of norm and RoPE; arguments of
    :func:`llmk.reference.composites.make_qk_norm_rope_write_kv`'s op."""

    key: Tensor
    value: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float
    positions: Tensor
    cos_sin: Tensor | None
    norm_offset: float
    neighbours: bool
    norm_after_rope: bool


class TritonAttention:
    """Causal attention with grouped heads, sliding window or chunks, soft cap and sinks.

    The cache is ``[num_blocks, 2, kv_heads, block_size, head_dim]``, so that the entries of one head in a block are
    contiguous; or, where values have another width, ``[num_blocks, kv_heads, block_size, head_dim + value_dim]``.
    Slots that no sequence has written are never read. For requests with one query, the keys are split between
    programs (split-K, Flash-Decoding); all other requests are computed tile by tile. A step may contain both kinds.
    Nothing synchronizes with the device, and launches depend only on shapes and on the step's upper bounds: a graph
    captured from :meth:`prepare` on (which launches a kernel too) can be replayed for every step with the same
    padded shapes and no greater bounds. Padding requests come last and have no queries, so their ``query_start``
    repeats the number of tokens; rows of padding are zero or undefined.

    If the query requires deterministic results, all requests use the prefill kernel, which is batch-invariant: tiles
    that a row does not see leave it unchanged.

    Attributes:
        prefill_tile: tile sizes of the prefill kernel.
        few, many: launch configurations of the decode kernel, for batches that don't fill the device and for those that
            do.
    """

    specialized: SpecializedTile | None = None
    """Tile sizes of the prefill kernel with specialized warps, which leaves only split keys to the other. ``None``: the
    other computes all."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self._group = query.num_heads // query.num_kv_heads
        self._cores = num_multiprocessors(device)
        itemsize = max(getattr(torch, dtype).itemsize for dtype in (query.dtype, query.cache_dtype))
        self._value = query.value_dim or query.head_dim
        block, value_block = (max(16, triton.next_power_of_2(size)) for size in (query.head_dim, self._value))
        self.prefill_tile = prefill_tile(current_target(), max(block, value_block), itemsize, self._group)
        self.few, self.many = decode_configs(current_target(), max(block, value_block), itemsize, self._group)
        self._shape = {
            "SCALE": query.scale,
            "SOFTCAP": query.softcap or 0.0,
            "HAS_SINKS": query.sinks,
            "HEADS": query.num_heads,
            "GROUP": self._group,
            "SIZE": query.head_dim,
            "BLOCK": block,
            "VALUE": self._value,
            "VALUE_BLOCK": value_block,
            "BLOCK_SIZE": query.block_size,
            "PRECISION": dot_precision(current_target()),
            "SCALED": False,
        }

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """See the class, in the query's ``cache_dtype``."""
        query, own = self.query, (self.query.num_kv_heads, self.query.block_size)
        if self._value == query.head_dim:
            return CacheLayout(LAYOUT, (num_blocks, 2, *own, query.head_dim), query.cache_dtype)
        return CacheLayout(LAYOUT, (num_blocks, *own, query.head_dim + self._value), query.cache_dtype)

    def strides(self, cache: Tensor) -> tuple[int, int, int, int]:
        """As :func:`llmk_triton.attention.write.strides`."""
        return strides(cache, self.query.head_dim)

    def prepare(self, step: CacheStep) -> AttentionMeta:
        """Selects the kernels to launch, and launches the kernel that schedules the work of decode requests."""
        query = self.query
        prefills = query.deterministic or step.max_query_len > 1
        decodes = not (query.deterministic or (prefills and step.seq_lens.shape[0] == 1))
        meta = self._prepare_prefill(step, decodes=decodes) if prefills else AttentionMeta(self, step, None)
        if not decodes:
            return meta
        config = self.few if step.seq_lens.shape[0] * query.num_kv_heads < self._cores else self.many
        schedule = self._rule(config)(step, query.num_kv_heads, mixed=prefills)
        shape, device = (schedule.parts, query.num_heads), step.seq_lens.device
        partial = torch.empty(*shape, self._value, dtype=torch.float32, device=device)
        stats = torch.empty(*shape, 2, dtype=torch.float32, device=device)
        return replace(meta, decoding=config, schedule=schedule, partial=partial, stats=stats)

    def _prepare_prefill(self, step: CacheStep, *, decodes: bool) -> AttentionMeta:
        """The metadata of requests with several queries. ``decodes``: those with one are the decode kernel's."""
        query, tile = self.query, self.prefill_tile
        schedule = schedule_prefill(
            step,
            query.num_kv_heads,
            queries=tile.rows // self._group,
            slots=triton.cdiv(self._cores, query.num_kv_heads),
            window=query.sliding_window or 0,
            skip_decode=decodes,
            split=not query.deterministic,
        )
        work = None
        if self.specialized is not None:
            queries = SPECIALIZED_ROWS // rows_per_token(self._group)
            work = list_work(step, schedule, queries=queries, keys=self.specialized.keys)
        shape, device = (schedule.most, query.num_kv_heads, tile.rows), step.seq_lens.device
        partial = torch.empty(*shape, self._shape["VALUE_BLOCK"], dtype=torch.float32, device=device)
        stats = torch.empty(*shape, 2, dtype=torch.float32, device=device)
        return AttentionMeta(self, step, schedule, work, partial, stats)

    def write(
        self,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim or value_dim]``, cast to the cache's dtype);
        slots of -1 are skipped."""
        write(key, value, cache, meta.step.slot_mapping, scales)

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        *,
        new: NewTokens | None = None,
    ) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache. In a step with only decode requests,
        it can also do the Q/K norms, RoPE and K/V write for the ``new`` tokens."""
        query = rows(query)
        out = torch.empty(*query.shape[:2], self._value, dtype=query.dtype, device=query.device)
        tensors = (out, query, cache, query if sinks is None else sinks)
        if meta.decoding is not None and meta.schedule is not None:
            self._decode(tensors, meta, meta.decoding.tile, meta.schedule, scales, new)
        if meta.prefills is not None:
            self._prefill(tensors, meta, meta.prefills, scales)
            # In a captured step, rows of padding pass through what may index by them, such as routers.
            if query.shape[0] != meta.step.num_tokens or not meta.step.host_seq_lens:
                zero_padding(out, meta.step.query_start)
        return out

    def _decode(
        self,
        tensors: _Tensors,
        meta: AttentionMeta,
        tile: Tile,
        schedule: Schedule,
        scales: tuple[float, float],
        new: NewTokens | None,
    ) -> None:
        _, query, cache, _ = tensors
        table = meta.step.block_table
        heads = triton.next_power_of_2(self._group)
        fresh: tuple[Any, ...] = (query,) * 7 + (0, 0)
        norms: dict[str, Any] = {"EPS": 0.0, "ROTARY": 0, "Q_WEIGHT": False, "K_WEIGHT": False, "OFFSET": 0.0}
        norms |= {"NEIGHBOURS": False, "NORM_AFTER": False}
        if new is not None:
            key, value = rows(new.key), rows(new.value)
            weights = (key if weight is None else weight for weight in (new.q_weight, new.k_weight))
            angles = new.positions if new.cos_sin is None else new.cos_sin
            index = (new.positions, angles, meta.step.slot_mapping)
            fresh = (key, value, *weights, *index, key.stride(0), value.stride(0))
            norms |= {"EPS": new.eps, "OFFSET": new.norm_offset}
            norms |= {"NEIGHBOURS": new.neighbours, "NORM_AFTER": new.norm_after_rope}
            norms |= {"ROTARY": 0 if new.cos_sin is None else new.cos_sin.shape[1]}
            norms |= {"Q_WEIGHT": new.q_weight is not None, "K_WEIGHT": new.k_weight is not None}
        decode_kernel[(self.query.num_kv_heads, schedule.programs)](
            *tensors,
            schedule.items,
            schedule.spans,
            schedule.arrived,
            meta.partial,
            meta.stats,
            table,
            query.stride(0),
            *self.strides(cache),
            table.stride(0),
            *fresh,
            *scales,
            **self._shape,
            **norms,
            ROWS=tile.rows,
            TILE=tile.keys,
            MERGED_HEADS=heads,
            MERGED_AT_ONCE=min(_MERGED, max(1, _MERGED * _MERGED_HEADS // heads)),
            FUSED=new is not None,
            **tile.options(),
        )

    def _prefill(
        self, tensors: _Tensors, meta: AttentionMeta, schedule: PrefillSchedule, scales: tuple[float, float]
    ) -> None:
        out, query, cache, sinks = tensors
        tile, step = self.prefill_tile, meta.step
        requests, table = step.seq_lens.shape[0], step.block_table
        programs = query.shape[0] // (tile.rows // self._group) + requests + schedule.most
        if meta.work is not None and self.specialized is not None:
            from llmk_triton.attention.prefill_specialized import attend

            attend(out, query, cache, sinks, meta.work, table, self.query, self.specialized, self._cores)
            programs = schedule.most
        prefill_kernel[(programs, self.query.num_kv_heads)](
            *tensors,
            step.query_start,
            step.seq_lens,
            table,
            schedule.starts,
            schedule.parts,
            schedule.places,
            schedule.arrived,
            meta.prefill_partial,
            meta.prefill_stats,
            requests,
            query.stride(0),
            *self.strides(cache),
            table.stride(0),
            *scales,
            **self._shape,
            WINDOW=self.query.sliding_window or 0,
            CHUNKED=self.query.chunked,
            **pdl.options(),
            SPLIT_ONLY=meta.work is not None,
            ROWS=tile.rows,
            TILE=tile.keys,
            **tile.options(),
        )

    def _rule(self, config: DecodeConfig) -> Rule:
        """The scheduling rule of the decode kernel. With a sliding window, no requests share programs, because each
        window starts at another key."""
        tile, window = config.tile, self.query.sliding_window or 0
        return Rule(
            slots=max(1, config.programs * self._cores // self.query.num_kv_heads),
            tile=tile.keys,
            least=max(1, config.least // tile.keys),
            team=1 if window else 1 << (tile.rows // self._group).bit_length() - 1,
            window=window,
            chunked=self.query.chunked,
        )


class SpecializedAttention(TritonAttention):
    """As :class:`TritonAttention`, with prompts by the kernel of :mod:`llmk_triton.attention.prefill_specialized`."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        super().__init__(query, device)
        self.specialized = SPECIALIZED_TILES[query.head_dim]


def qk_norm_rope_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor | None,
    cache: Tensor,
    meta: AttentionMeta,
    scales: tuple[float, float] = (1.0, 1.0),
    *,
    sinks: Tensor | None = None,
    norm_offset: float = 0.0,
    neighbours: bool = False,
    norm_after_rope: bool = False,
) -> Tensor:
    """Implements :func:`llmk.reference.composites.make_qk_norm_rope_attention` with the metadata of
    ``triton.attention``; one launch if all requests decode, where registers are enough."""
    if meta.prefills is None and meta.backend.few.fuses and k is not None and v is not None:
        new = NewTokens(k, v, q_weight, k_weight, eps, positions, cos_sin, norm_offset, neighbours, norm_after_rope)
        return meta.backend.run(q, cache, meta, sinks, scales, new=new)
    q = qk_norm_rope_write_kv(
        q, k, v, q_weight, k_weight, eps, positions, cos_sin, cache, meta, scales, norm_offset=norm_offset,
        neighbours=neighbours, norm_after_rope=norm_after_rope,
    )  # fmt: skip
    return meta.backend.run(q, cache, meta, sinks, scales)
