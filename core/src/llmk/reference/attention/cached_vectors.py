"""Vectors as caches hold them: a head's key or value of one token, or a latent row, in the cache's dtype.

In int8 and int4 caches a vector is a row of bytes: its float32 scale, then its integers; in int4 two to a byte, the
even element in the low bits, with 8 for zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api.cache import SCALE_BYTES, SCALED_BITS, vector_bytes


def columns(cache_dtype: str, size: int) -> int:
    """Columns of a row that holds a vector of ``size`` elements."""
    return vector_bytes(cache_dtype, size) if cache_dtype in SCALED_BITS else size


def encoded(vectors: Tensor, cache_dtype: str, scale: float) -> Tensor:
    """``vectors`` (``[..., size]``) as they are stored, ``[..., columns]``. ``scale`` is that of an fp8 cache."""
    if bits := SCALED_BITS.get(cache_dtype):
        return _integers(vectors.float(), bits)
    dtype: torch.dtype = getattr(torch, cache_dtype)
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        vectors = (vectors.float() / scale).clamp_(-limit, limit)
    return vectors.to(dtype)


def decoded(rows: Tensor, cache_dtype: str, size: int, scale: float, dtype: torch.dtype) -> Tensor:
    """The vectors, ``[..., size]`` in ``dtype``, of rows as :func:`encoded` returns them: ``rows`` themselves where
    they have no scales and are of ``dtype``."""
    if bits := SCALED_BITS.get(cache_dtype):
        own = rows[..., :SCALE_BYTES].contiguous().view(torch.float32)
        numbers = rows[..., SCALE_BYTES:]
        if bits == 4:
            whole = torch.stack((numbers & 15, numbers >> 4), dim=-1).flatten(-2)[..., :size].float() - 8
        else:
            whole = numbers.view(torch.int8).float()
        return (whole * own).to(dtype)
    vectors = rows.to(dtype)
    return vectors.mul_(scale) if rows.itemsize == 1 else vectors


def _integers(vectors: Tensor, bits: int) -> Tensor:
    """Each vector's scale and integers, as bytes."""
    limit = (1 << (bits - 1)) - 1
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    own = torch.where(largest > 0, largest / limit, 1.0)
    whole = (vectors / own).round()
    if bits == 4:
        nibbles = torch.nn.functional.pad(whole + 8, (0, whole.shape[-1] % 2)).to(torch.uint8)
        numbers = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    else:
        numbers = whole.to(torch.int8).view(torch.uint8)
    return torch.cat((own.view(torch.uint8), numbers), dim=-1)
