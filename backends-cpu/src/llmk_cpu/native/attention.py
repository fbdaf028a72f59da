"""Paged attention, and what is fused with the write to its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep
from llmk.api.cache import SCALE_BYTES, SCALED_BITS
from llmk.reference.composites import WriteOptions
from llmk.reference.rope.rotation import RopeOptions
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CACHE_CODES, CODES, heads_of

LAYOUT = "cpu_paged"
"""Dimensions of the cache: block, head, key then value, token; ``native/attention.h`` has the details."""

_library = library()
_attention = _library.function("attention", "ppipiiiiipppiiiifffpdd")
_write_kv = _library.function("write_kv", "ppipipippffppiipipiiffpiiiiidd")
_rope = _library.function("rope", "ppiiiippiipidd")


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step's index tensors, and the backend that attends by them."""

    backend: NativeAttention
    step: CacheStep
    query_start: int
    seq_lens: int
    block_table: int
    table_stride: int
    slots: int
    requests: int


class NativeAttention:
    """Causal attention with grouped heads, sliding window, soft cap and sinks, for prefill, chunked prefill and decode
    in one step, in float32 over a cache of any float dtype of 16 or 32 bits, or of ``float8_e4m3fn`` or ``int8``.

    A row's result is bit-identical in any batch and with any number of threads. Slots that no sequence has written are
    never used. Rows of padding are zeros.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self.value_dim = query.value_dim or query.head_dim
        self._cache_code = CACHE_CODES[getattr(torch, query.cache_dtype)]

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, kv_heads, head_dim + value_dim, block_size]`` in the query's ``cache_dtype``; where vectors
        have scales, with room for two of them."""
        query = self.query
        size = query.head_dim + self.value_dim + (2 * SCALE_BYTES if query.cache_dtype in SCALED_BITS else 0)
        return CacheLayout(LAYOUT, (num_blocks, query.num_kv_heads, size, query.block_size), query.cache_dtype)

    def prepare(self, step: CacheStep) -> AttentionMeta:
        """Where the step's index tensors are."""
        table = step.block_table
        return AttentionMeta(
            self,
            step,
            step.query_start.data_ptr(),
            step.seq_lens.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            step.slot_mapping.data_ptr(),
            step.num_requests,
        )

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: AttentionMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``) at the step's slots; those of -1 are
        skipped."""
        assert value is not None
        positions = meta.step.slot_mapping  # which nothing reads without a rotation
        self.write_rotated(None, key, value, None, None, 0.0, positions, None, cache, meta, scales=scales)

    def write_rotated(
        self,
        q: Tensor | None,
        k: Tensor,
        v: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        meta: AttentionMeta,
        **options: Unpack[WriteOptions],
    ) -> Tensor | None:
        """The op ``qk_norm_rope_write_kv``; without ``q``, for keys and values alone."""
        query, tokens = self.query, meta.step.num_tokens
        k, v = heads_of(k), heads_of(v)
        out = None
        if q is not None:
            q = heads_of(q)
            out = torch.empty(q.shape, dtype=q.dtype)
        axes = options.get("axes")
        _write_kv(
            None if out is None else out.data_ptr(), None if q is None else q.data_ptr(),
            0 if q is None else q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0),
            None if q_weight is None else q_weight.data_ptr(), None if k_weight is None else k_weight.data_ptr(), eps,
            options.get("norm_offset", 0.0), positions.data_ptr(), None if axes is None else axes.data_ptr(),
            positions.stride(0), positions.stride(-1), None if cos_sin is None else cos_sin.data_ptr(),
            0 if cos_sin is None else cos_sin.shape[1], cache.data_ptr(), cache.stride(0), query.block_size,
            *options.get("scales", (1.0, 1.0)), meta.slots, tokens, query.num_heads, query.num_kv_heads, query.head_dim,
            self.value_dim, CODES[k.dtype], self._cache_code,
        )  # fmt: skip
        return out

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache."""
        spec, (key_scale, value_scale) = self.query, scales
        query = heads_of(query)
        tokens, heads, head_dim = query.shape
        out = torch.empty((tokens, heads, self.value_dim), dtype=query.dtype)
        _attention(
            out.data_ptr(), query.data_ptr(), query.stride(0), cache.data_ptr(), cache.stride(0), spec.block_size,
            spec.num_kv_heads, head_dim, self.value_dim, meta.query_start, meta.seq_lens, meta.block_table,
            meta.table_stride, meta.requests, heads, spec.sliding_window or 0, spec.scale * key_scale,
            spec.softcap or 0.0, value_scale, None if sinks is None else sinks.data_ptr(), CODES[query.dtype],
            self._cache_code,
        )  # fmt: skip
        return out


def qk_norm_rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor | None,
    cache: Tensor,
    meta: AttentionMeta,
    **options: Unpack[WriteOptions],
) -> Tensor:
    """As the op that :func:`llmk.reference.composites.make_qk_norm_rope_write_kv` builds, for the cache of
    :class:`NativeAttention`."""
    new_q = meta.backend.write_rotated(q, k, v, q_weight, k_weight, eps, positions, cos_sin, cache, meta, **options)
    assert new_q is not None
    return new_q


def rope(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, **options: Unpack[RopeOptions]
) -> tuple[Tensor, Tensor]:
    """As :func:`llmk.reference.rope.rotation.rope`."""
    return _rotate(q, positions, cos_sin, 0, options), _rotate(k, positions, cos_sin, 0, options)


def rope_interleaved(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, **options: Unpack[RopeOptions]
) -> tuple[Tensor, Tensor]:
    """As :func:`llmk.reference.rope.rotation.rope_interleaved`."""
    return _rotate(q, positions, cos_sin, 1, options), _rotate(k, positions, cos_sin, 1, options)


def _rotate(x: Tensor, positions: Tensor, cos_sin: Tensor, neighbours: int, options: RopeOptions) -> Tensor:
    x, axes = heads_of(x), options.get("axes")
    out = torch.empty(x.shape, dtype=x.dtype)
    _rope(
        out.data_ptr(), x.data_ptr(), x.stride(0), *x.shape, positions.data_ptr(),
        None if axes is None else axes.data_ptr(), positions.stride(0), positions.stride(-1), cos_sin.data_ptr(),
        cos_sin.shape[1], neighbours, CODES[x.dtype],
    )  # fmt: skip
    return out
