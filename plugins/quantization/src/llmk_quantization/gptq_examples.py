"""Weights as the tools of GPTQ and AWQ store them, and what they represent, for example checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def transposed_words(numbers: Tensor, bits: int) -> Tensor:
    """Numbers ``[rows, columns]`` of ``bits`` packed along rows, from the lowest bits of int32 words on: ``[rows * bits
    / 32, columns]``."""
    places = torch.arange(bits)
    flat = (numbers.T.to(torch.int64)[..., None] >> places & 1).flatten(1).unflatten(1, (-1, 32))
    words = (flat << torch.arange(32)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).T.contiguous()


def grouped(weight: Tensor, bits: int, group_size: int, index: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """``weight`` (``[out, in]``) rounded to numbers ``[in, out]`` with zero points and scales ``[groups, out]``; with
    ``index``, the group of each input."""
    inputs = weight.shape[1]
    size = inputs if group_size < 0 else group_size
    index = torch.arange(inputs) // size if index is None else index
    columns, largest = weight.float().T, (1 << bits) - 1
    members = torch.stack([columns[index == group] for group in range(inputs // size)])
    low, high = members.amin(1).clamp(max=0), members.amax(1).clamp(min=1e-6)
    scale = ((high - low) / largest).half()
    zero = (-low / scale.float()).round().clamp(1, largest)
    numbers = (columns / scale.float()[index] + zero[index]).round().clamp(0, largest)
    return numbers.to(torch.uint8), zero.to(torch.uint8), scale


def ordered_index(inputs: int, group_size: int) -> Tensor:
    """The groups of inputs that were quantized in another order than theirs, the same for all weights."""
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    return (order.argsort() // group_size).to(torch.int32)


def stored_gptq(
    weight: Tensor, bits: int, group_size: int, *, v2: bool = False, ordered: bool = False
) -> dict[str, Tensor]:
    """A weight ``[out, in]`` as GPTQ's tools store it."""
    inputs = weight.shape[1]
    size = inputs if group_size < 0 else group_size
    index = ordered_index(inputs, size) if ordered else (torch.arange(inputs) // size).to(torch.int32)
    numbers, zero, scale = grouped(weight, bits, group_size, index)
    kept = zero if v2 else zero - 1
    qzeros = transposed_words(kept.T, bits).T.contiguous()
    return {"qweight": transposed_words(numbers, bits), "qzeros": qzeros, "scales": scale, "g_idx": index}


def restored_gptq(parts: Mapping[str, Tensor], bits: int, v2: bool = False) -> Tensor:
    """Dequantizes what :func:`stored_gptq` stores, number by number."""

    def numbers(words: Tensor) -> Tensor:
        flat: Tensor = (words.T.to(torch.int64)[..., None] >> torch.arange(32) & 1).flatten(1).unflatten(1, (-1, bits))
        return (flat << torch.arange(bits)).sum(-1).T

    zero = numbers(parts["qzeros"].T).T + (not v2) & (1 << bits) - 1
    index = parts["g_idx"].long()
    exact = (numbers(parts["qweight"]) - zero[index]) * parts["scales"].float()[index]
    return exact.T


_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def stored_awq(weight: Tensor, group_size: int) -> dict[str, Tensor]:
    """A weight ``[out, in]`` as AutoAWQ stores it in the version ``gemm``."""
    numbers, zero, scale = grouped(weight, 4, group_size)

    def packed(values: Tensor) -> Tensor:
        eight = values.unflatten(1, (-1, 8))[..., list(_AWQ)].flatten(1)
        return transposed_words(eight.T, 4).T.contiguous()

    return {"qweight": packed(numbers), "qzeros": packed(zero), "scales": scale}


def restored_awq(parts: Mapping[str, Tensor]) -> Tensor:
    """Dequantizes what :func:`stored_awq` stores, column by column."""

    def numbers(words: Tensor) -> Tensor:
        columns = {
            8 * word + place: words[:, word] >> 4 * i & 15
            for word in range(words.shape[1])
            for i, place in enumerate(_AWQ)
        }
        return torch.stack([columns[i] for i in range(len(columns))], dim=1)

    inputs, groups = parts["qweight"].shape[0], parts["scales"].shape[0]
    index = torch.arange(inputs) // (inputs // groups)
    return ((numbers(parts["qweight"]) - numbers(parts["qzeros"])[index]) * parts["scales"].float()[index]).T
