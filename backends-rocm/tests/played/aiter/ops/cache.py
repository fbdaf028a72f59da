"""Of AITER."""

from __future__ import annotations

import torch
from torch import Tensor


def _store(rows: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Rows go to blocks and offsets of ``cache`` (``[blocks, block_size, ...]``); slots below zero are skipped."""
    there = slots >= 0
    kept = slots[there]
    cache[kept // cache.shape[1], kept % cache.shape[1]] = rows[: len(slots)][there].to(cache.dtype)


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    assert kv_cache_dtype == "auto"
    assert key_cache.stride(0) == value_cache.stride(0)
    assert key_cache[0].is_contiguous()
    _store(key, key_cache, slot_mapping)
    _store(value, value_cache, slot_mapping)


def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    assert kv_cache_dtype == "auto"
    assert kv_cache.dim() == 3
    _store(torch.cat((kv_c, k_pe), -1), kv_cache, slot_mapping)
