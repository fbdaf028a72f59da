"""Simple writers of the block types that the ``gguf`` package only reads: scales by the largest values of each group,
without llama.cpp's search for better ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK = 256


def _half(values: npt.NDArray[np.floating]) -> Bytes:
    return values.astype(np.float16)[..., None].view(np.uint8)


def _packed_6_bits(scales: Bytes, mins: Bytes) -> Bytes:
    """Eight scales and eight minima of 6 bits, ``[blocks, 8]`` each, in 12 bytes."""
    low = (scales[:, :4] & 63) | (scales[:, 4:] >> 4 << 6)
    high = (mins[:, :4] & 63) | (mins[:, 4:] >> 4 << 6)
    rest = (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4
    return np.concatenate([low, high, rest], axis=1).astype(np.uint8)


def _affine(values: Floats, most: int) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Of ``[blocks, 256]``: the scale of scales, that of minima, the packed scales, and numbers from 0 to ``most``
    ``[blocks, 8, 32]``."""
    groups = values.reshape(-1, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    scale, minimum = (groups.max(-1) - low) / most, -low
    d, dmin = (each.max(-1, keepdims=True) / 63 for each in (scale, minimum))
    d, dmin = d.astype(np.float16).astype(np.float32), dmin.astype(np.float16).astype(np.float32)
    sc = np.clip(np.round(scale / np.where(d == 0, 1, d)), 0, 63).astype(np.uint8)
    mn = np.clip(np.round(minimum / np.where(dmin == 0, 1, dmin)), 0, 63).astype(np.uint8)
    step = (d * sc)[..., None]
    numbers = np.round((groups + (dmin * mn)[..., None]) / np.where(step == 0, 1, step))
    return _half(d[:, 0]), _half(dmin[:, 0]), _packed_6_bits(sc, mn), np.clip(numbers, 0, most).astype(np.uint8)


def q4_k(rows: Floats) -> Bytes:
    """4-bit numbers with a 6-bit scale and minimum per 32."""
    d, dmin, scales, numbers = _affine(rows.reshape(-1, BLOCK), 15)
    pairs = numbers.reshape(-1, 4, 2, 32)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([d, dmin, scales, packed], axis=1).reshape(rows.shape[0], -1)


def q5_k(rows: Floats) -> Bytes:
    """5-bit numbers with a 6-bit scale and minimum per 32."""
    d, dmin, scales, numbers = _affine(rows.reshape(-1, BLOCK), 31)
    pairs = (numbers & 15).reshape(-1, 4, 2, 32)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    high = np.bitwise_or.reduce((numbers >> 4) << np.arange(8, dtype=np.uint8)[None, :, None], axis=1)
    return np.concatenate([d, dmin, scales, high, packed], axis=1).reshape(rows.shape[0], -1)


def q6_k(rows: Floats) -> Bytes:
    """6-bit numbers, symmetric, with an 8-bit scale per 16."""
    groups = rows.reshape(-1, 16, 16)
    scale = np.abs(groups).max(-1) / 31
    d = (scale.max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    sc = np.clip(np.round(scale / np.where(d == 0, 1, d)), 0, 127).astype(np.int8)
    step = (d * sc)[..., None]
    numbers = np.clip(np.round(groups / np.where(step == 0, 1, step)), -32, 31).astype(np.int8) + 32
    four = numbers.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.stack([four[:, :, 0] & 15 | (four[:, :, 2] & 15) << 4, four[:, :, 1] & 15 | (four[:, :, 3] & 15) << 4], 2)
    high = np.bitwise_or.reduce((four >> 4) << (2 * np.arange(4, dtype=np.uint8))[None, None, :, None], axis=2)
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), sc.view(np.uint8).reshape(-1, 16), _half(d[:, 0])]
    return np.concatenate(parts, axis=1).astype(np.uint8).reshape(rows.shape[0], -1)


WRITERS = {"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}
