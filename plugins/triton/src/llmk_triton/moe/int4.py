"""FusedMoE of experts with weights of the format ``int4_group``: routing as for plain ones, and a grouped GEMM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from llmk.reference.moe import Experts, prepare_moe_int4_group
from llmk.reference.quantized_weight import PackedWeight
from llmk_triton.common import activations
from llmk_triton.common.targets import current_target, has_wave32
from llmk_triton.gemm import int4
from llmk_triton.gemm.int4 import TiledInt4
from llmk_triton.gemm.int4_kernel import ROWS
from llmk_triton.moe import fused
from llmk_triton.moe.fused import ExpertRows, FusedMoE
from llmk_triton.moe.int4_kernel import experts_int4_kernel

_GATED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": activations.silu_and_mul,
    "gelu": activations.gelu_and_mul,
    "gelu_tanh": activations.gelu_tanh_and_mul,
}
_MOST_ROWS = 64
"""Most rows of an expert that a program multiplies."""


@dataclass(frozen=True, slots=True)
class Int4Experts:
    """The weights of all experts, ``tiles`` tiles of words each; ``outputs`` are those of an expert."""

    weight: TiledInt4
    tiles: int
    outputs: int


Prepared = Mapping[str, Int4Experts] | Experts[PackedWeight]
"""Weights in tiles, or the reference's, which are widened in every call."""


def prepare(parameters: Mapping[str, Tensor]) -> Prepared:
    """The weights for :func:`fused_moe` of the parameters of :func:`llmk.reference.moe.prepare_moe_int4_group`. Tiles
    can't have groups of inputs that are ordered or no multiple of 32, or zero points that are no whole numbers."""
    tiled = {name: _experts(name, parameters) for name in ("gate_up", "down")}
    whole = {name: experts for name, experts in tiled.items() if experts is not None}
    return whole if len(whole) == len(tiled) else prepare_moe_int4_group(parameters)


def _experts(name: str, parameters: Mapping[str, Tensor]) -> Int4Experts | None:
    stored = {key: parameters.get(f"{name}_{key}") for key in ("packed", "scale", "zero_point")}
    own = {key: tensor for key, tensor in stored.items() if tensor is not None}
    outputs = own["packed"].shape[1]
    more = -outputs % (2 * ROWS)
    flat = {f"weight_{key}": F.pad(each, (0, 0, 0, more)).flatten(0, 1) for key, each in own.items()}
    weight = int4.prepare(flat)
    if not isinstance(weight, TiledInt4) or f"{name}_order" in parameters:
        return None
    return Int4Experts(weight, (outputs + more) // ROWS, outputs)


def fused_moe(
    x: Tensor,
    router_logits: Tensor,
    weights: Prepared,
    *,
    activation: str = "silu",
    gated: bool = True,
    **options: Any,
) -> Tensor:
    """As :func:`llmk_triton.moe.fused.fused_moe`."""
    if isinstance(weights, Experts):
        plain = {
            name: torch.stack([expert.dequantize(x.dtype) for expert in getattr(weights, name)])
            for name in ("gate_up", "down")
        }
        return fused.fused_moe(x, router_logits, plain, activation=activation, gated=gated, **options)
    if not x.shape[0]:
        return torch.empty_like(x)
    down, experts = weights["down"], router_logits.shape[1]
    # Of plain weights, routing reads the shapes alone.
    shapes = {"gate_up": x.new_empty(0), "down": x.new_empty(1).expand(experts, down.outputs, down.weight.inputs)}
    moe = FusedMoE(x, router_logits, shapes, activation=activation, **options)
    rows = moe.route()
    each = x.shape[0] * options["top_k"] / experts
    size = min(max(16, triton.next_power_of_2(int(each))), _MOST_ROWS)
    features = _multiply(moe, rows, x.contiguous(), weights["gate_up"], options["top_k"], size)
    inner = _GATED[activation](features) if gated else activations.activation(features, activation)
    return moe.sum(rows, _multiply(moe, rows, inner, down, 1, size))


def _multiply(moe: FusedMoE, rows: ExpertRows, x: Tensor, experts: Int4Experts, shared: int, size: int) -> Tensor:
    """Every pair times its expert's weight, ``[pairs, out]``; ``shared`` pairs have the same row."""
    weight, out = experts.weight, x.new_empty(x.shape[0] * shared, experts.outputs)
    tiles, blocks, _, width = weight.words.shape
    target = current_target()
    stages = (1 if has_wave32(target) else 2) if target.backend != "cuda" else 4 if size <= 32 else 3
    experts_int4_kernel[(moe.max_blocks(size) * triton.cdiv(experts.outputs, ROWS),)](
        *(out, x, weight.words, weight.scale, weight.scale if weight.zero is None else weight.zero),
        *(rows.counts, rows.order, moe.num_tokens),
        **moe.grouping,
        SIZE=weight.inputs,
        OUT=experts.outputs,
        TILES=experts.tiles,
        SHARED=shared,
        ROWS=size,
        STRIDE=tiles * ROWS,
        BLOCKS=blocks,
        GROUP=weight.group,
        WIDTH=width,
        PARTS=weight.parts,
        HAS_ZERO=weight.zero is not None,
        **int4.code(x.dtype, target),
        num_warps=4,
        num_stages=stages,
        **moe.launch,
    )
    return out
