"""Mixtures of experts by AITER: tokens sorted by expert, and two grouped GEMMs, of plain and of fp8 weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llmk.reference.moe import route
from llmk.reference.quantized_weight import ScaledWeight
from llmk_rocm.fp8 import as_fnuz

_TILE = (16, 16)
"""Rows and columns of the tiles in which AITER's kernels load weights."""


@dataclass(frozen=True, slots=True)
class TiledExperts:
    """Weights in tiles. ``scales`` are those of both, ``format`` the name of AITER's ``QuantType``."""

    gate_up: Tensor
    down: Tensor
    scales: tuple[Tensor | None, Tensor | None]
    format: str


def prepare_plain(parameters: Mapping[str, Tensor]) -> TiledExperts:
    """The weights of ``gate_up`` ``[E, 2 * I, H]`` and ``down`` ``[E, H, I]``."""
    return _tiled(parameters, "No")


def prepare_channel(parameters: Mapping[str, Tensor]) -> TiledExperts:
    """The same in fp8, with ``gate_up_scale`` ``[E, 2 * I, 1]`` and ``down_scale`` ``[E, H, 1]``."""
    return _tiled(parameters, "per_Token")


def prepare_block(parameters: Mapping[str, Tensor]) -> TiledExperts:
    """The same in fp8, with a scale for each block of 128x128 weights."""
    return _tiled(parameters, "per_128x128")


def prepare_channel_fnuz(parameters: Mapping[str, Tensor]) -> TiledExperts:
    """:func:`prepare_channel`, as fnuz."""
    return prepare_channel(_fnuz(parameters))


def prepare_block_fnuz(parameters: Mapping[str, Tensor]) -> TiledExperts:
    """:func:`prepare_block`, as fnuz."""
    return prepare_block(_fnuz(parameters))


def fused_moe(
    x: Tensor, router_logits: Tensor, weights: TiledExperts, *, top_k: int, activation: str = "silu", **routing: Any
) -> Tensor:
    """As :func:`llmk.reference.moe.fused_moe`, with ``activation`` ``"silu"``. Activations of fp8 experts are quantized
    by AITER."""
    from aiter.fused_moe import fused_moe
    from aiter.ops.enum import ActivationType, QuantType

    shares, experts = route(router_logits, top_k, **routing)
    gate_up_scale, down_scale = weights.scales
    out: Tensor = fused_moe(
        hidden_states=x,
        w1=weights.gate_up,
        w2=weights.down,
        topk_weight=shares,
        topk_ids=experts.int(),
        activation=ActivationType.Silu,
        quant_type=QuantType[weights.format],
        w1_scale=gate_up_scale,
        w2_scale=down_scale,
    )
    return out


def _tiled(parameters: Mapping[str, Tensor], quant_type: str) -> TiledExperts:
    from aiter.ops.shuffle import shuffle_weight

    gate_up, down = (shuffle_weight(x=parameters[name], layout=_TILE) for name in ("gate_up", "down"))
    scales = [parameters.get(f"{name}_scale") for name in ("gate_up", "down")]
    first, second = (None if scale is None else scale.float().contiguous() for scale in scales)
    return TiledExperts(gate_up, down, (first, second), quant_type)


def _fnuz(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    converted = dict(parameters)
    for name in ("gate_up", "down"):
        weight = as_fnuz(ScaledWeight(parameters[name], parameters[f"{name}_scale"].to(torch.float32), (1, 1)))
        converted |= {name: weight.values, f"{name}_scale": weight.scale}
    return converted
