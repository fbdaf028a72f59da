"""Stored weights and their meaning: for a weight format, its parameters and the plain weight that they represent."""

from __future__ import annotations

from dataclasses import dataclass
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
_MADE_AS = {"int8_dynamic": "int8_channel"}
"""Formats whose weights are those of another."""
_LARGEST_GROUP = 128
"""Inputs that share a scale in int4_group, or the largest power of two that divides the inputs."""
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
        same = _MADE_AS.get(weight_format, weight_format)
        prepared: Any = getattr(quantized_weight, f"prepare_{same}")(parameters)
        return Stored(parameters, prepared.dequantize(torch.float32), _bound(weight_format))
    method = next((m.spec for m in registry.of(QuantizationSpec) if m.spec.weight_format == weight_format), None)
    if method is None:
        raise Skip(f"no installed quantization method makes weights of the format {weight_format!r}")
    converted = load_object(method.implementation)().convert("layer", {"weight": weight.clone()}, [weight.shape[0]])
    return Stored(converted, weight.float(), _UNKNOWN)


def stored_experts(registry: Registry, weight_format: str, **weights: Tensor) -> tuple[Stored, dict[str, Tensor]]:
    """Weights of experts (``gate_up`` ``[E, 2 * I, H]``, ``down`` ``[E, H, I]``) in a format, expert by expert; and the
    plain weights that they represent."""
    parameters, meanings, bound = {}, {}, None
    for name, weight in weights.items():
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
    parameters: dict[str, Tensor] = getattr(quantize, f"quantize_{_MADE_AS.get(weight_format, weight_format)}")(weight)
    return parameters


def _bound(weight_format: str) -> Bound | None:
    return ROUNDED_INPUTS if weight_format.startswith("fp8") or weight_format == "int8_dynamic" else None
