"""Stored weights and their meaning: for a weight format, its parameters and the plain weight that they represent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import QuantizationSpec
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk.reference import quantize, quantized_weight
from llmk_testing.case import Skip
from llmk_testing.tolerance import ROUNDED_INPUTS, ROUNDED_TWICE, Bound

_OF_REFERENCE = ("int8_channel", "int8_dynamic", "int8_group", "int4_group", "fp8_tensor", "fp8_channel", "fp8_block")
_BY_CHANNEL = ("int8_channel", "int8_dynamic", "fp8_channel")
MADE_AS = {"int8_dynamic": "int8_channel"}
"""Formats whose weights are those of another."""
_LARGEST_GROUP = 128
"""Inputs that share a scale in int4_group, or the largest power of two that divides the inputs."""
_GROUP = 32
"""The same in int8_group."""
_UNKNOWN = Bound(0.15, 2.0)
"""Bound for formats that only their method can dequantize: kernels are compared with the weight before quantization."""


@dataclass(frozen=True, slots=True)
class Stored:
    """``parameters`` are the argument of ``KernelSpec.prepare``, on the host; ``meaning`` is the plain weight that they
    represent, float32; ``bound`` is the tolerance of a GEMM, if it is larger than that of the dtype."""

    parameters: dict[str, Tensor]
    meaning: Tensor
    bound: Bound | None = None


def formats(registry: Registry) -> tuple[str, ...]:
    """The weight formats of queries: plain, the reference's, and those of installed methods."""
    methods = (registered.spec.weight_format for registered in registry.of(QuantizationSpec))
    return tuple(dict.fromkeys(("plain", *_OF_REFERENCE, *methods)))


def stored(registry: Registry, weight_format: str, weight: Tensor) -> Stored:
    """``weight`` (``[out, in]`` in the engine's dtype) in a format.

    Raises:
        Skip: no installed method can quantize to the format.
    """
    if weight_format == "plain":
        return Stored({"weight": weight}, weight.float())
    if weight_format in _OF_REFERENCE:
        parameters = _quantized(weight_format, weight)
        same = MADE_AS.get(weight_format, weight_format)
        prepared: Any = getattr(quantized_weight, f"prepare_{same}")(parameters)
        return Stored(parameters, prepared.dequantize(torch.float32), _bound(weight_format))
    method = next((m.spec for m in registry.of(QuantizationSpec) if m.spec.weight_format == weight_format), None)
    if method is None:
        raise Skip(f"no installed quantization method makes weights of the format {weight_format!r}")
    converted = load_object(method.implementation)().convert("layer", {"weight": weight.clone()}, [weight.shape[0]])
    return Stored(converted, weight.float(), _UNKNOWN)


def forms(
    weight_format: str, outputs: int, inputs: int, random: torch.Generator
) -> Iterator[tuple[str, Callable[[], Stored]]]:
    """The forms that a format of groups leaves open, each with random numbers: groups of any equal size, zero points,
    which need not be whole, inputs in another order, and scales of any dtype. ``inputs`` is a multiple of 16, of
    128 for all forms: others have those whose groups divide it."""
    if weight_format in _BY_CHANNEL:
        yield from _forms_by_channel(weight_format, (outputs, inputs), random)
    zeros = {"int4_group": (8.0, 15.0), "int8_group": (0.0, 127.0)}.get(weight_format)
    if zeros is None:
        return
    usual, most = zeros

    def drawn(group: int, *, zero: str = "", ordered: bool = False, dtype: torch.dtype = torch.float32) -> Stored:
        numbers = torch.randint(-128, 128, (outputs, inputs), generator=random).to(torch.int8)
        groups = (outputs, inputs // group)
        scale = (torch.rand(groups, generator=random) + 0.5) / (8 if most < 16 else 128) / inputs**0.5
        parameters = {"weight_scale": scale.to(dtype)}
        if weight_format == "int4_group":
            parameters["weight_packed"] = numbers[:, : inputs // 2].contiguous().view(torch.uint8)
        else:
            parameters["weight"] = numbers
        if zero:
            apart = (torch.rand(groups, generator=random) - 0.5) * 12
            parameters["weight_zero_point"] = usual + (apart.round() if zero == "whole" else apart)
        if ordered:
            parameters["weight_order"] = torch.randperm(inputs, generator=random)
        prepared: Any = getattr(quantized_weight, f"prepare_{weight_format}")(parameters)
        return Stored(parameters, prepared.dequantize(torch.float32))

    yield "one group for each output", partial(drawn, inputs)
    yield "two groups for each output", partial(drawn, inputs // 2)
    named = [(f"groups of {group}", group, partial(drawn)) for group in (128, 64, 32, 16)]
    named += [(f"groups of {group} with zero points", group, partial(drawn, zero="whole")) for group in (64, 16)]
    named += [
        ("zero points that are not whole", 32, partial(drawn, zero="apart")),
        ("inputs in another order", 64, partial(drawn, ordered=True)),
        ("inputs in another order, with zero points", 32, partial(drawn, zero="whole", ordered=True)),
    ]
    for dtype in (torch.bfloat16, torch.float16):
        named.append((f"scales in {dtype}", 64, partial(drawn, zero="whole", dtype=dtype)))
    yield from ((name, partial(made, group)) for name, group, made in named if not inputs % group)


def _forms_by_channel(
    weight_format: str, shape: tuple[int, int], random: torch.Generator
) -> Iterator[tuple[str, Callable[[], Stored]]]:
    """All numbers that 8 bits hold, and scales of any dtype, also without a dimension for inputs."""
    same = MADE_AS.get(weight_format, weight_format)

    def drawn(dtype: torch.dtype = torch.float32, *, flat: bool = False) -> Stored:
        numbers = torch.randint(-128, 128, shape, generator=random).to(torch.int8)
        largest = 128.0
        if same == "fp8_channel":
            numbers = torch.where(numbers & 127 == 127, 0, numbers).view(torch.float8_e4m3fn)  # without NaN
            largest = 448.0
        scale = ((torch.rand(shape[0], 1, generator=random) + 0.5) / largest / shape[1] ** 0.5).to(dtype)
        parameters = {"weight": numbers, "weight_scale": scale.flatten() if flat else scale}
        prepared: Any = getattr(quantized_weight, f"prepare_{same}")(parameters)
        return Stored(parameters, prepared.dequantize(torch.float32), _bound(weight_format))

    yield "all numbers of 8 bits", drawn
    yield "scales of one dimension", partial(drawn, flat=True)
    for dtype in (torch.bfloat16, torch.float16):
        yield f"scales in {dtype}", partial(drawn, dtype)


def stored_experts(
    registry: Registry, weight_format: str, form: str, random: torch.Generator, **weights: Tensor
) -> tuple[Stored, dict[str, Tensor]]:
    """Weights of experts (``gate_up`` ``[E, 2 * I, H]``, without gates ``[E, I, H]``; ``down`` ``[E, H, I]``) in a
    format, expert by expert; and the plain weights that they represent. Of one of the :func:`forms`, the numbers are
    random."""
    parameters, meanings, bound = {}, {}, None
    for name, weight in weights.items():
        if form:
            shape = (weight.shape[1], weight.shape[2])
            each = [dict(forms(weight_format, *shape, random))[form]() for _ in weight]
        else:
            each = [stored(registry, weight_format, expert) for expert in weight]
        for key in each[0].parameters:
            parameters[name + key.removeprefix("weight")] = torch.stack([one.parameters[key] for one in each])
        meanings[name] = torch.stack([one.meaning for one in each])
        bound = ROUNDED_TWICE if each[0].bound is ROUNDED_INPUTS else each[0].bound
    return Stored(parameters, torch.empty(0), bound), meanings


def _quantized(weight_format: str, weight: Tensor) -> dict[str, Tensor]:
    if weight_format == "int4_group":
        columns = weight.shape[1]
        return quantize.quantize_int4_group(weight, min(columns & -columns, _LARGEST_GROUP))
    if weight_format == "int8_group":
        columns = weight.shape[1]
        return quantize.quantize_int8_group(weight, min(columns & -columns, _GROUP))
    parameters: dict[str, Tensor] = getattr(quantize, f"quantize_{MADE_AS.get(weight_format, weight_format)}")(weight)
    return parameters


def _bound(weight_format: str) -> Bound | None:
    return ROUNDED_INPUTS if weight_format.startswith("fp8") or weight_format == "int8_dynamic" else None
