"""The modules of :mod:`llmk_models.longcat_flash`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn import Layer, Parameter, StepContext

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import longcat_flash


class HiddenStream:
    """Hidden states, ``[tokens, hidden]``."""

    def __init__(self, builder: Builder, spec: longcat_flash.HiddenStream) -> None:
        pass

    def start(self, x: Tensor) -> tuple[Tensor]:
        """What the first layer gets."""
        return (x,)

    def end(self, x: Tensor) -> Tensor:
        """The final hidden states."""
        return x


class ZeroExperts(Layer):
    """Experts of which some return their input.

    The kernel knows the others alone. It gets logits from which it computes just the shares of those that were chosen,
    and of others, where fewer were, the share 0.
    """

    def __init__(self, builder: Builder, spec: longcat_flash.ZeroExperts) -> None:
        self._router, self._experts = builder.linear(spec.router), builder.experts(spec.experts)
        self._top_k, self._scaling = spec.top_k, spec.scaling
        self._num_experts = spec.experts.facts.num_experts
        self._all_reduce = builder.build.parallel.all_reduce
        bias = Parameter(builder.build, [spec.bias.at], [spec.bias.size], dtype=torch.float32)
        super().__init__(builder.build, [bias])

    def finish(self) -> None:
        self._bias = self.parameters[0].take()

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]`` to the same."""
        shares = torch.softmax(self._router(x).float(), dim=-1)
        chosen = (shares + self._bias).topk(self._top_k, dim=-1).indices
        kept = torch.zeros_like(shares).scatter(1, chosen, shares.gather(1, chosen))
        routed, zero = kept[:, : self._num_experts], kept[:, self._num_experts :]
        out = self._all_reduce(self._experts(x, torch.logit(routed)))
        total: Tensor = out + x * (zero.sum(dim=-1, keepdim=True) * self._scaling).to(x.dtype)
        return total


class LongcatLayer:
    """A whole layer."""

    def __init__(self, builder: Builder, spec: longcat_flash.LongcatLayer) -> None:
        self._norm, self._joints = builder.norm(spec.norm), [builder.joint(each) for each in spec.joints]
        self._attentions = [builder.block(each) for each in spec.attentions]
        self._mlps = [builder.block(each) for each in spec.mlps]
        self._experts = ZeroExperts(builder, spec.experts)

    def __call__(self, x: Tensor, step: StepContext) -> tuple[Tensor]:
        """Maps hidden states ``[tokens, hidden]``."""
        (first, second), (mlp, last), (after, between, before) = self._attentions, self._mlps, self._joints
        normed, total = after(first(self._norm(x), step), x)
        shortcut = self._experts(normed)
        normed, total = between(mlp(normed, step), total)
        normed, total = before(second(normed, step), total)
        return (total + last(normed, step) + shortcut,)
