"""Experts with their router, and the MLP that every token passes through."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class MoE:
    """Follows :class:`~llmk.nn.blocks.block.Entered`; its entry is the router. With tensor parallelism, each rank
    computes an addend of the sum of routed and shared experts, which is all-reduced.

    Attributes:
        router, experts: its layers.
    """

    def __init__(self, builder: Builder, spec: tree.MoE, *, fused: bool) -> None:
        self._shared = None if spec.shared is None else SharedExpert(builder, spec)
        self.router = builder.linear(spec.router)
        self._latent = tuple(builder.linear(each) for each in spec.latent)
        self.experts = builder.experts(spec.experts)
        self._scaled_input = spec.scaled_input
        self._concurrent = builder.build.concurrent
        self._all_reduce = None if spec.partial else builder.build.parallel.all_reduce

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        return self.after(self.router(x), x, step=step)

    def after(self, logits: Tensor, x: Tensor, *, step: StepContext) -> Tensor:
        total = self._together(logits, x, step)
        return total if self._all_reduce is None else self._all_reduce(total)

    def _together(self, logits: Tensor, x: Tensor, step: StepContext) -> Tensor:
        if self._shared is None:
            return self._routed(logits, x)
        # Routed experts leave the device idle between their small kernels, where the shared one fits in.
        routed, shared = self._concurrent(partial(self._routed, logits, x), partial(self._shared, x, step))
        total: Tensor = routed + shared
        return total

    def _routed(self, logits: Tensor, x: Tensor) -> Tensor:
        if self._latent:
            narrow, widen = self._latent
            return widen(self.experts(narrow(x), logits))
        return self.experts(_scaled(x, logits) if self._scaled_input else x, logits)


def _scaled(x: Tensor, logits: Tensor) -> Tensor:
    """``x`` times the sigmoid of each token's greatest logit."""
    # Not torch.sigmoid, which computes the last elements of a tensor by other code than the rest.
    share = 1 / (1 + torch.exp(-logits.float().amax(dim=-1, keepdim=True)))
    return x * share.to(x.dtype)


class SharedExpert:
    """The MLP for every token, times the sigmoid of a gate value per token if there is a gate."""

    def __init__(self, builder: Builder, spec: tree.MoE) -> None:
        assert spec.shared is not None
        self._mlp = builder.block(spec.shared)
        self._gate = None if spec.shared_gate is None else builder.linear(spec.shared_gate)
        self._scale = None if spec.shared_scale is None else builder.kernel(spec.shared_scale)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        out: Tensor = self._mlp(x, step)
        if self._gate is None or self._scale is None:
            return out
        scaled: Tensor = self._scale(out, self._gate(x))
        return scaled
