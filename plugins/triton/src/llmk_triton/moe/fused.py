"""FusedMoE of experts in Triton, as :func:`llmk.reference.moe.fused_moe`.

Launches depend only on the number of tokens: the chosen experts are known only on the device, and the host does not
synchronize to read them. For few tokens, every pair of a token and one of its experts has its own programs; for more,
the rows of each expert are computed in blocks (grouped GEMM), with a grid for the largest possible number of blocks. No
sum depends on the order of programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import torch
import triton
from torch import Tensor

from llmk.reference.activations import GatedOptions
from llmk.reference.quantized_weight import FP8_BLOCK
from llmk_triton.common import pdl
from llmk_triton.common.activations import gating
from llmk_triton.common.targets import current_target, dot_precision
from llmk_triton.moe.few_tokens import down_few_kernel, gate_up_few_kernel
from llmk_triton.moe.grouped import down_kernel, gate_up_kernel, sum_kernel
from llmk_triton.moe.routing import place_kernel, route_kernel, select_kernel
from llmk_triton.moe.tiles import Tile, Tiles, choose_tiles

_ROUTING_LOGITS = 8192
"""Logits per iteration of a routing program."""

_ROUTED_AT_ONCE = 8192
"""Most logits of a step for which routing is one launch, each program of which ranks an expert among all of them."""

_FEW_PAIRS, _PAIRS = 1024, 4096
"""Pairs per iteration of the search for an expert's pairs: of up to ``_PAIRS``, and of more."""

_SUMMED = 1024
"""Features of a token that a program of the sum computes."""


def prepare_fp8(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights for :func:`fused_moe` of parameters of the formats ``fp8_channel`` and ``fp8_block``."""
    return {name: each.float().contiguous() if "scale" in name else each for name, each in parameters.items()}


@dataclass(frozen=True, slots=True)
class ChosenExperts:
    """The experts of each token, on the device; the output of :func:`llmk_triton.moe.routing.select_kernel`."""

    experts: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """The rows (pairs of token and expert) of each expert, on the device; the output of
    :func:`llmk_triton.moe.routing.route_kernel`."""

    counts: Tensor
    order: Tensor
    scores: Tensor


def fused_moe(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    top_k: int,
    renormalize: bool,
    activation: str = "silu",
    scoring: str = "softmax",
    selection_bias: Tensor | None = None,
    scaling: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
    gated: bool = True,
    **gated_options: Unpack[GatedOptions],
) -> Tensor:
    """As :func:`llmk.reference.moe.fused_moe`. Among equal scores, the expert with the lowest index is chosen, and so
    is the group. Weights may be fp8, with ``gate_up_scale`` and ``down_scale`` as in
    :func:`llmk.reference.moe.prepare_moe_fp8_channel` or ``prepare_moe_fp8_block``, float32."""
    if not x.shape[0]:
        return torch.empty_like(x)
    moe = FusedMoE(
        x,
        router_logits,
        weights,
        top_k,
        renormalize,
        activation,
        scoring,
        selection_bias=selection_bias,
        scaling=scaling,
        num_groups=num_groups,
        top_groups=top_groups,
        group_scoring=group_scoring,
        gated=gated,
        gated_options=gated_options,
    )
    return moe.run(moe.tiles())


class FusedMoE:
    """One call of :func:`fused_moe`, launch by launch.

    Attributes:
        num_tokens: those of the call.
        grouping, weighting, launch: arguments of kernels that find the rows of each expert, and of those that weight
            them, and launch options of all.
    """

    def __init__(
        self,
        x: Tensor,
        logits: Tensor,
        weights: Mapping[str, Tensor],
        top_k: int,
        renormalize: bool,
        activation: str = "silu",
        scoring: str = "softmax",
        *,
        selection_bias: Tensor | None = None,
        scaling: float = 1.0,
        num_groups: int = 1,
        top_groups: int = 1,
        group_scoring: str = "max",
        gated: bool = True,
        gated_options: GatedOptions | None = None,
    ) -> None:
        self._x, self._logits = x.contiguous(), logits.contiguous()
        self._gate_up, self._down = weights["gate_up"], weights["down"]
        self._gate_up_bias, self._down_bias = weights.get("gate_up_bias"), weights.get("down_bias")
        scales = weights.get("gate_up_scale"), weights.get("down_scale")
        self._scales = tuple(logits if scale is None else scale for scale in scales)
        self._scaled = 0 if scales[1] is None else 1 if scales[1].shape[1] == self._down.shape[1] else FP8_BLOCK
        self._bias = logits if selection_bias is None else selection_bias
        self._experts, self._hidden, self._inner = self._down.shape
        self.num_tokens, self._top_k = x.shape[0], top_k
        self._pairs = self.num_tokens * top_k
        block = max(16, triton.next_power_of_2(self._experts))
        self._shape = {"HIDDEN": self._hidden, "INNER": self._inner}
        self.grouping = {"EXPERTS": self._experts, "EXPERT_BLOCK": block}
        self._ranking = {
            "EXPERTS": self._experts,
            "BLOCK": block,
            "TOP_K": top_k,
            "SCORING": scoring,
            "RENORMALIZE": renormalize,
            "HAS_BIAS": selection_bias is not None,
        }
        self._groups = {"GROUPS": num_groups, "TOP_GROUPS": top_groups, "PAIRED": group_scoring == "top2_sum"}
        self.weighting = {"RENORMALIZE": renormalize, "SCALING": scaling, "SLOTS": triton.next_power_of_2(top_k)}
        self._gating = {"ACTIVATION": activation, "GATED": gated, **gating(gated_options or {})}
        on = pdl.on()
        self.launch: dict[str, Any] = {"PDL": on, **({"launch_pdl": True} if on else {})}

    def tiles(self) -> Tiles:
        """The tile sizes that are launched by default."""
        dtype = str(self._x.dtype).removeprefix("torch.")
        shape = (self.num_tokens, self._experts, self._top_k, self._hidden, self._inner)
        return choose_tiles(current_target(), dtype, *shape, scaled=bool(self._scaled))

    def run(self, tiles: Tiles) -> Tensor:
        """Computes the result: ``[tokens, hidden]``."""
        if not tiles.rows:
            chosen = self.select(1)
            return self.down_few(chosen, self.gate_up_few(chosen, tiles.gate_up), tiles.down)
        rows = self.route()
        h = self.gate_up(rows, tiles.rows, tiles.gate_up)
        return self.sum(rows, self.down(rows, h, tiles.rows, tiles.down))

    def select(self, size: int) -> ChosenExperts:
        """Chooses the experts of each token; ``size`` tokens per program."""
        experts = self._x.new_empty(self.num_tokens, self._top_k, dtype=torch.int16)
        scores = self._x.new_empty(self.num_tokens, self._top_k, dtype=torch.float32)
        select_kernel[(triton.cdiv(self.num_tokens, size),)](
            *(experts, scores, self._logits, self._bias, self.num_tokens),
            **self._ranking,
            **self._groups,
            ROWS=size,
            num_warps=min(4, size),
            **self.launch,
        )
        return ChosenExperts(experts, scores)

    def gate_up_few(self, chosen: ChosenExperts, tile: Tile) -> Tensor:
        """The activations of every pair of a token and an expert, ``[tokens * top_k, inner]``."""
        h = self._x.new_empty(self._pairs, self._inner)
        gate_up_few_kernel[(triton.cdiv(self._inner, tile.features), self._pairs)](
            *(h, self._x, chosen.experts, self._gate_up, _or(self._gate_up_bias, h)),
            HAS_BIAS=self._gate_up_bias is not None,
            **self._shape,
            TOP_K=self._top_k,
            **self._gating,
            STAGES=min(tile.stages, triton.cdiv(self._hidden, tile.columns)),
            **self._options(tile),
        )
        return h

    def down_few(self, chosen: ChosenExperts, h: Tensor, tile: Tile) -> Tensor:
        """The result, from the activations."""
        out = torch.empty_like(self._x)
        down_few_kernel[(triton.cdiv(self._hidden, tile.features), self.num_tokens)](
            *(out, h, chosen.experts, chosen.scores, self._down, _or(self._down_bias, h)),
            HAS_BIAS=self._down_bias is not None,
            **self._shape,
            TOP_K=self._top_k,
            **self.weighting,
            STAGES=min(tile.stages, triton.cdiv(self._inner, tile.columns)),
            **self._options(tile),
        )
        return out

    def route(self) -> ExpertRows:
        """Chooses experts and finds each expert's rows. Two launches for many logits, and for experts in groups."""
        counts = self._x.new_empty(self._experts, dtype=torch.int32)
        order = self._x.new_empty(self._experts, self.num_tokens, dtype=torch.int32)
        block = self._ranking["BLOCK"]
        if self._logits.numel() > _ROUTED_AT_ONCE or self._groups["TOP_GROUPS"] < self._groups["GROUPS"]:
            few = self._pairs <= _PAIRS
            chosen = self.select(1 if few else max(1, _ROUTING_LOGITS // 4 // block))
            place = {"PAIRS": _FEW_PAIRS, "num_warps": 4} if few else {"PAIRS": _PAIRS, "num_warps": 16}
            place_kernel[(self._experts,)](
                *(counts, order, chosen.experts, self.num_tokens), TOP_K=self._top_k, **place, **self.launch
            )
            return ExpertRows(counts, order, chosen.scores)
        scores = self._x.new_empty(self.num_tokens, self._top_k, dtype=torch.float32)
        route_kernel[(self._experts,)](
            *(counts, order, scores, self._logits, self._bias, self.num_tokens),
            **self._ranking,
            ROWS=min(max(16, _ROUTING_LOGITS // block), 64, max(16, triton.next_power_of_2(self.num_tokens))),
            num_warps=8,
            **self.launch,
        )
        return ExpertRows(counts, order, scores)

    def gate_up(self, rows: ExpertRows, size: int, tile: Tile) -> Tensor:
        """The activations of every pair of a token and an expert, in blocks of ``size`` rows: ``[tokens * top_k,
        inner]``."""
        h = self._x.new_empty(self._pairs, self._inner)
        gate_up_kernel[(self.max_blocks(size) * triton.cdiv(self._inner, tile.features),)](
            *(h, self._x, self._gate_up, self._scales[0], _or(self._gate_up_bias, h)),
            *(rows.counts, rows.order, self.num_tokens),
            **self._shape,
            **self.grouping,
            HAS_BIAS=self._gate_up_bias is not None,
            TOP_K=self._top_k,
            **self._gating,
            ROWS=size,
            SCALED=self._scaled,
            PRECISION=dot_precision(current_target()),
            **self._options(tile),
        )
        return h

    def down(self, rows: ExpertRows, h: Tensor, size: int, tile: Tile) -> Tensor:
        """The output of every pair, not yet weighted, in blocks of ``size`` rows: ``[tokens * top_k, hidden]``."""
        each = self._x.new_empty(self._pairs, self._hidden)
        down_kernel[(self.max_blocks(size) * triton.cdiv(self._hidden, tile.features),)](
            *(each, h, self._down, self._scales[1], _or(self._down_bias, h)),
            *(rows.counts, rows.order, self.num_tokens),
            **self._shape,
            **self.grouping,
            HAS_BIAS=self._down_bias is not None,
            ROWS=size,
            SCALED=self._scaled,
            PRECISION=dot_precision(current_target()),
            **self._options(tile),
        )
        return each

    def sum(self, rows: ExpertRows, each: Tensor) -> Tensor:
        """The result: the weighted sum of the pairs' outputs."""
        out = torch.empty_like(self._x)
        columns = min(_SUMMED, triton.next_power_of_2(self._hidden))
        sum_kernel[(self.num_tokens, triton.cdiv(self._hidden, columns))](
            *(out, each, rows.scores),
            HIDDEN=self._hidden,
            TOP_K=self._top_k,
            **self.weighting,
            COLUMNS=columns,
            num_warps=4,
            **self.launch,
        )
        return out

    def max_blocks(self, size: int) -> int:
        """The largest possible number of blocks: every expert that can have rows has one row in its last block."""
        return (self._pairs + min(self._experts, self._pairs) * (size - 1)) // size

    def _options(self, tile: Tile) -> dict[str, Any]:
        sizes = {"FEATURES": tile.features, "COLUMNS": tile.columns}
        return sizes | {"num_warps": tile.warps, "num_stages": tile.stages} | self.launch


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """What is passed for a tensor that may be absent, and is then never accessed."""
    return other if tensor is None else tensor
