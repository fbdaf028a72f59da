"""Mixtures of experts. Weights of experts that no token chose are not read. A token's result is bit-identical in any
batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llmk.reference import moe as reference
from llmk.reference.activations import GatedOptions, activate
from llmk.reference.moe import prepare_moe_int4_group, prepare_moe_int8_group, route
from llmk_cpu.native.activations import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from llmk_cpu.native.library import Kernel, library
from llmk_cpu.native.quantized import (
    TOGETHER,
    CompactWeight,
    NibbleWeight,
    codes_of,
    pointer,
    prepare_int4,
    prepare_int8_rows,
)
from llmk_cpu.native.tensors import CODES, rows_of

_plain = library().function("linear_experts", "ppippppiiid")
_int8 = library().function("linear_experts_int8", "ppipppppiiid")
_groups = library().function("linear_experts_groups", "ppipppppipiiiddd")
_int4 = library().function("linear_experts_int4", "ppipppppipiiiddd")
_mix = library().function("mix_experts", "ppppiiid")

_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": gelu_tanh_and_mul,
}


@dataclass(frozen=True, slots=True)
class Projection:
    """One GEMM of all experts. ``scale`` and ``zero`` belong to quantized weights; ``columns`` are its inputs. ``by``
    multiplies by weights with groups."""

    weight: Tensor
    bias: Tensor | None
    columns: int
    scale: Tensor | None = None
    zero: Tensor | None = None
    by: Kernel | None = None

    def __call__(self, x: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
        """Of each expert's ``rows`` of ``x``, in the order of experts: ``[len(rows), out]``."""
        experts, outputs = self.weight.shape[:2]
        out = torch.empty((rows.shape[0], outputs), dtype=x.dtype)
        given = (out.data_ptr(), x.data_ptr(), x.stride(0), rows.data_ptr(), offsets.data_ptr(), self.weight.data_ptr())
        bias = pointer(self.bias)
        sizes = (experts, outputs, self.columns, CODES[x.dtype])
        if self.scale is None:
            _plain(*given, bias, *sizes)
        elif self.by is None:
            _int8(*given, self.scale.data_ptr(), bias, *sizes)
        else:
            zero, groups, codes = pointer(self.zero), self.scale.shape[1], codes_of(self.scale, self.zero)
            self.by(*given, self.scale.data_ptr(), zero, groups, bias, *sizes, *codes)
        return out


@dataclass(frozen=True, slots=True)
class Experts:
    """Both GEMMs."""

    gate_up: Projection
    down: Projection


def prepare_plain(parameters: Mapping[str, Tensor]) -> Experts:
    """The parameters of :func:`llmk.reference.moe.fused_moe`, unchanged."""
    return _prepared(
        parameters, lambda name, bias: Projection(_whole(parameters[name]), bias, parameters[name].shape[2])
    )


def prepare_int8_experts(parameters: Mapping[str, Tensor]) -> Experts:
    """Those of :func:`llmk.reference.moe.prepare_moe_int8_channel`."""

    def projection(name: str, bias: Tensor | None) -> Projection:
        weight = parameters[name]
        return Projection(_whole(weight), bias, weight.shape[2], _whole(parameters[f"{name}_scale"].float()))

    return _prepared(parameters, projection)


def prepare_int4_group_experts(parameters: Mapping[str, Tensor]) -> Experts | Any:
    """Those of :func:`llmk.reference.moe.prepare_moe_int4_group`; the reference's weights where the kernel doesn't take
    the groups."""
    return _grouped(parameters, "weight_packed", prepare_int4) or prepare_moe_int4_group(parameters)


def prepare_int8_group_experts(parameters: Mapping[str, Tensor]) -> Experts | Any:
    """The same of :func:`llmk.reference.moe.prepare_moe_int8_group`."""
    return _grouped(parameters, "weight", prepare_int8_rows) or prepare_moe_int8_group(parameters)


def fused_moe(
    x: Tensor,
    router_logits: Tensor,
    weights: Experts | Any,
    *,
    activation: str = "silu",
    gated: bool = True,
    **options: Any,
) -> Tensor:
    """As :func:`llmk.reference.moe.fused_moe`, with weights of one of the functions above."""
    weights = weights if isinstance(weights, Experts) else _dequantized(weights, x.dtype)
    own = {name: value for name, value in options.items() if name in GatedOptions.__annotations__}
    shares, experts = route(router_logits, **{name: value for name, value in options.items() if name not in own})
    count, chosen = experts.shape
    order = experts.flatten().argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    offsets = torch.zeros(weights.gate_up.weight.shape[0] + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(experts.flatten(), minlength=len(offsets) - 1).cumsum(0)
    features = weights.gate_up(rows_of(x), order // chosen, offsets)
    inner = _ACTIVATIONS[activation](features, **own) if gated else activate(features, activation)
    each = weights.down(inner, torch.arange(len(order)), offsets)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    shares = shares.contiguous()
    _mix(
        out.data_ptr(), each.data_ptr(), places.data_ptr(), shares.data_ptr(), count, chosen, x.shape[1],
        CODES[x.dtype],
    )  # fmt: skip
    return out


def _dequantized(weights: reference.Experts[Any], dtype: torch.dtype) -> Experts:
    """All experts, as a recorded step can't look which of them have tokens."""
    gate_up, down = (torch.stack([each.dequantize(dtype) for each in some]) for some in (weights.gate_up, weights.down))
    return Experts(
        Projection(gate_up, weights.gate_up_bias, gate_up.shape[2]), Projection(down, weights.down_bias, down.shape[2])
    )


def _grouped(
    parameters: Mapping[str, Tensor], numbers: str, prepare: Callable[[Mapping[str, Tensor]], Any]
) -> Experts | None:
    """Weights with groups, of which ``prepare`` makes a linear layer's; ``None`` where it makes the reference's."""

    def projection(name: str) -> Projection | None:
        stored = {f"weight{key.removeprefix(name)}": each for key, each in parameters.items() if key.startswith(name)}
        shape = stored[numbers].shape
        whole = prepare({key: each.flatten(0, 1) for key, each in stored.items() if key != "weight_bias"})
        bias = stored.get("weight_bias")
        if isinstance(whole, CompactWeight):
            return Projection(whole.numbers.view(shape), bias, shape[2], whole.scale, whole.zero, _groups)
        if isinstance(whole, NibbleWeight) and shape[1] % TOGETHER == 0:
            return Projection(whole.numbers.view(shape), bias, shape[2] * 2, whole.scale, whole.zero, _int4)
        return None

    gate_up, down = projection("gate_up"), projection("down")
    return None if gate_up is None or down is None else Experts(gate_up, down)


def _prepared(parameters: Mapping[str, Tensor], projection: Callable[[str, Tensor | None], Projection]) -> Experts:
    return Experts(
        projection("gate_up", parameters.get("gate_up_bias")), projection("down", parameters.get("down_bias"))
    )


def _whole(tensor: Tensor) -> Tensor:
    return tensor.contiguous()
