"""The Triton backend of latent attention, and the ops over it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import triton
from torch import Tensor

from llmk.api.attention import CacheLayout
from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk_triton.attention.decode_schedule import Rule, Schedule
from llmk_triton.attention.padding import zero_padding
from llmk_triton.attention.prefill_schedule import PrefillSchedule, schedule_prefill
from llmk_triton.attention.write import rows
from llmk_triton.common import pdl
from llmk_triton.common.targets import (
    DecodeConfig,
    current_target,
    dot_precision,
    expanded_tile,
    latent_decode_configs,
    latent_prefill_tile,
    latent_rows,
    num_multiprocessors,
)
from llmk_triton.latent.decode import latent_decode_kernel, latent_merge_kernel, latent_value_kernel
from llmk_triton.latent.expand import Expansion, expand, plan_expansion
from llmk_triton.latent.expanded_prefill import attend_expanded
from llmk_triton.latent.prefill import latent_prefill_kernel
from llmk_triton.latent.query import NewLatents, prepare_queries, write

LAYOUT = "paged_latent"
"""Dimensions of the cache: block, token, row."""

_MERGED = 16
"""Splits of a request whose partial results are loaded at a time in the split-K merge."""
_FEW_TOKENS = 8
"""Most tokens that the merge multiplies by the value projection at once: it reads the weight for each."""
_FEATURES = 32
"""Features of a head's value per program of that kernel."""


@dataclass(frozen=True, slots=True)
class LatentMeta:
    """A step's attention metadata.

    Attributes:
        prefills: work schedule of requests with several queries; ``None``: there are none.
        prefill_partial, prefill_stats: buffers for the partial results of split keys; see
            :func:`llmk_triton.latent.prefill.latent_prefill_kernel`.
        decoding, schedule: launch configuration and work schedule of requests with one query; ``None``: the decode
            kernel is not launched.
        partial, stats: the same for :func:`llmk_triton.latent.decode.latent_decode_kernel`.
        expansion, tiles: of prompts whose keys and values may be projected, the rows, and the tiles of queries.
    """

    backend: LatentAttention
    step: CacheStep
    prefills: PrefillSchedule | None = None
    prefill_partial: Tensor | None = None
    prefill_stats: Tensor | None = None
    decoding: DecodeConfig | None = None
    schedule: Schedule | None = None
    partial: Tensor | None = None
    stats: Tensor | None = None
    expansion: Expansion | None = None
    tiles: PrefillSchedule | None = None


class LatentAttention:
    """Causal attention over latent rows, which all heads share.

    The cache is ``[num_blocks, block_size, head_dim]``: a latent vector, followed by the shared key. A program computes
    a group of heads, so that their queries are the rows of a GEMM. For requests with one query, the keys are
    split between programs (split-K, Flash-Decoding); all other requests are computed tile by tile. A step may contain
    both kinds. As in :class:`llmk_triton.attention.backend.TritonAttention`, nothing synchronizes with the device, and
    launches depend only on shapes and on the step's upper bounds.

    Attributes:
        prefill_tile, expanded_tile: tile sizes of the prefill kernels, with absorbed queries and with projected keys.
        few, many: launch configurations of the decode kernel, for batches that don't fill the device and for those that
            do.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        assert query.latent_dim is not None
        self.query = query
        self._latent = query.latent_dim
        target, fp8 = current_target(), query.cache_dtype.startswith("float8")
        self._groups = triton.cdiv(query.num_heads, latent_rows(target, fp8=fp8))
        self._group = triton.cdiv(query.num_heads, self._groups)
        self._cores = num_multiprocessors(device)
        block = max(16, triton.next_power_of_2(self._latent))
        rope = query.head_dim - self._latent
        rope_block = max(16, triton.next_power_of_2(rope)) if rope else 0
        row = (block + rope_block) * getattr(torch, query.dtype).itemsize
        self.prefill_tile = latent_prefill_tile(target, row, fp8=fp8)
        self.few, self.many = latent_decode_configs(target, row, self._group)
        self.expanded_tile = expanded_tile(target, getattr(torch, query.dtype).itemsize)
        self._shape = {
            "SCALE": query.scale,
            "HEADS": query.num_heads,
            "GROUP": self._group,
            "LATENT": self._latent,
            "ROPE": rope,
            "BLOCK": block,
            "ROPE_BLOCK": rope_block,
            "BLOCK_SIZE": query.block_size,
            "PRECISION": dot_precision(target),
        }

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, block_size, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        return CacheLayout(LAYOUT, (num_blocks, query.block_size, query.head_dim), query.cache_dtype)

    def prepare(self, step: CacheStep) -> LatentMeta:
        """Selects the kernels to launch, and launches those that schedule their work."""
        requests, device = step.seq_lens.shape[0], step.seq_lens.device
        prefills = step.max_query_len > 1
        decodes = 1 in step.host_query_lens if step.host_query_lens else not (prefills and requests == 1)
        meta = self._prepare_prefill(step, decodes=decodes) if prefills else LatentMeta(self, step)
        if not decodes:
            return meta
        config = self.few if requests * self._groups < self._cores else self.many
        schedule = self._rule(config)(step, 1, mixed=prefills)
        shape = (schedule.parts, self.query.num_heads)
        parts = torch.empty(*shape, self._latent, dtype=torch.float32, device=device)
        stats = torch.empty(*shape, 2, dtype=torch.float32, device=device)
        return replace(meta, decoding=config, schedule=schedule, partial=parts, stats=stats)

    def _prepare_prefill(self, step: CacheStep, *, decodes: bool) -> LatentMeta:
        """The metadata of requests with several queries. ``decodes``: those with one are the decode kernel's."""
        tile, slots = self.prefill_tile, max(1, self._cores // self._groups)
        planned = partial(schedule_prefill, step, window=0, skip_decode=decodes)
        schedule = planned(self._groups, queries=tile.rows // self._group, slots=slots, split=True)
        shape, device = (schedule.most, self._groups, tile.rows), step.seq_lens.device
        parts = torch.empty(*shape, self._shape["BLOCK"], dtype=torch.float32, device=device)
        stats = torch.empty(*shape, 2, dtype=torch.float32, device=device)
        meta = LatentMeta(self, step, schedule, parts, stats)
        if not step.host_seq_lens:
            return meta
        tiles = planned(1, queries=self.expanded_tile.rows, slots=1, split=False)
        return replace(meta, expansion=plan_expansion(step), tiles=tiles)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: LatentMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` (``[tokens, 1, head_dim]``, cast to the cache's dtype); slots of -1 are skipped. There are no
        values, and their scale is not used."""
        write(key, cache, meta.step.slot_mapping, scales[0])

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: LatentMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of absorbed queries (``[tokens, heads, head_dim]``) over the cache, ``[tokens, heads,
        latent_dim]``."""
        query = rows(query)
        out = self.decode(query, cache, meta, scales[0])
        if meta.prefills is not None:
            self._prefill(out, query, cache, meta, meta.prefills, scales[0])
            # In a captured step, rows of padding pass through what may index by them, such as routers.
            if query.shape[0] != meta.step.num_tokens or not meta.step.host_seq_lens:
                zero_padding(out, meta.step.query_start)
        return out

    def decode(self, query: Tensor, cache: Tensor, meta: LatentMeta, scale: float = 1.0) -> Tensor:
        """As :meth:`run`, for requests with one query alone; the rows of others are undefined."""
        out = self._attend_splits(query, cache, meta, scale)
        if meta.schedule is not None:
            latent_merge_kernel[(meta.step.seq_lens.shape[0], self.query.num_heads)](
                out,
                meta.partial,
                meta.stats,
                meta.schedule.spans,
                meta.step.query_start,
                HEADS=self.query.num_heads,
                LATENT=self._latent,
                BLOCK=self._shape["BLOCK"],
                AT_ONCE=_MERGED,
                num_warps=4,
                **pdl.options(),
            )
        return out

    def decode_values(self, query: Tensor, cache: Tensor, meta: LatentMeta, v_up: Tensor, out: Tensor) -> None:
        """As :meth:`decode`, times the value projection ``v_up`` (``[heads, latent_dim, value_dim]``) into ``out``
        (``[tokens, heads, value_dim]``), for steps in which every request has one query."""
        attended = self._attend_splits(query, cache, meta, 1.0)
        assert meta.schedule is not None
        heads, latent, value = v_up.shape
        latent_value_kernel[(query.shape[0], heads, triton.cdiv(value, _FEATURES))](
            out,
            attended,
            meta.partial,
            meta.stats,
            meta.schedule.spans,
            v_up,
            HEADS=heads,
            LATENT=latent,
            VALUE=value,
            COLUMNS=min(128, self._shape["BLOCK"]),
            FEATURES=_FEATURES,
            AT_ONCE=_MERGED,
            num_warps=4,
            **pdl.options(),
        )

    def _attend_splits(self, query: Tensor, cache: Tensor, meta: LatentMeta, scale: float) -> Tensor:
        """The attention of requests with one query, not yet merged where their keys are split."""
        out = torch.empty(*query.shape[:2], self._latent, dtype=query.dtype, device=query.device)
        schedule, table = meta.schedule, meta.step.block_table
        if meta.decoding is None or schedule is None:
            return out
        tile = meta.decoding.tile
        latent_decode_kernel[(self._groups, schedule.programs)](
            out,
            query,
            cache,
            schedule.items,
            schedule.spans,
            meta.partial,
            meta.stats,
            table,
            query.stride(0),
            *cache.stride()[:2],
            table.stride(0),
            scale,
            **self._shape,
            ROWS=tile.rows,
            TILE=tile.keys,
            **tile.options(),
        )
        return out

    def _prefill(
        self, out: Tensor, query: Tensor, cache: Tensor, meta: LatentMeta, schedule: PrefillSchedule, scale: float
    ) -> None:
        tile, step = self.prefill_tile, meta.step
        requests, table = step.seq_lens.shape[0], step.block_table
        programs = query.shape[0] // (tile.rows // self._group) + requests + schedule.most
        latent_prefill_kernel[(programs, self._groups)](
            out,
            query,
            cache,
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
            *cache.stride()[:2],
            table.stride(0),
            scale,
            **self._shape,
            **pdl.options(),
            ROWS=tile.rows,
            TILE=tile.keys,
            **tile.options(),
        )

    def _rule(self, config: DecodeConfig) -> Rule:
        """The scheduling rule of the decode kernel."""
        tile = config.tile
        return Rule(
            slots=max(1, config.programs * self._cores // self._groups),
            tile=tile.keys,
            least=max(1, config.least // tile.keys),
            team=1 << (tile.rows // self._group).bit_length() - 1,
            window=0,
        )


def latent_attention(
    q: Tensor,
    latent: Tensor,
    norm_weight: Tensor,
    eps: float,
    k_up: Tensor,
    v_up: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    meta: LatentMeta,
) -> Tensor:
    """Implements :func:`llmk.reference.composites.make_latent_attention` with the metadata of
    ``triton.attention_latent``: the queries and the cache in one launch, attention, and a GEMM per head that writes
    the result where it is wanted; three launches for few requests. Keys and values of prompts are projected, if that is
    less to compute."""
    new = NewLatents(latent, norm_weight, eps, positions, cos_sin, meta.step.slot_mapping)
    out = torch.empty(q.shape[0], *v_up.shape[::2], dtype=q.dtype, device=q.device)
    expansion, tiles, backend = meta.expansion, meta.tiles, meta.backend
    if meta.prefills is None and q.shape[0] == meta.step.seq_lens.shape[0] <= _FEW_TOKENS:
        backend.decode_values(prepare_queries(q, k_up, new, cache), cache, meta, v_up, out)
        return out
    if expansion is None or tiles is None or not expansion.pays(k_up, v_up):
        attended = backend.run(prepare_queries(q, k_up, new, cache), cache, meta)
        torch.bmm(attended.transpose(0, 1), v_up, out=out.transpose(0, 1))
        return out
    query = prepare_queries(q, None if meta.decoding is None else k_up, new, cache)
    rope = cos_sin.shape[1]
    if meta.decoding is not None:
        torch.bmm(backend.decode(query, cache, meta).transpose(0, 1), v_up, out=out.transpose(0, 1))
    expanded = expand(cache, meta.step, expansion, k_up, v_up, rope)
    turned = query[:, :, query.shape[2] - rope :]
    tile, scale = backend.expanded_tile, backend.query.scale
    attend_expanded(out, rows(q), turned, expanded, meta.step, tiles, expansion, tile, scale)
    if q.shape[0] != meta.step.num_tokens:
        zero_padding(out, meta.step.query_start)
    return out
