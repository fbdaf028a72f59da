"""The modules of :mod:`llmk_models.gemma4`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk_models.per_layer_modules import PerLayerGate, PerLayerInputs
from llmk_models.vector_layer import VectorLayer

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import gemma4


class Gemma4Stream:
    """Hidden states ``[tokens, hidden]``, and what each layer gets besides."""

    def __init__(self, builder: Builder, spec: gemma4.Gemma4Stream) -> None:
        self._inputs = None if spec.inputs is None else PerLayerInputs(builder, spec.inputs)

    def start(self, x: Tensor, *token_ids: Tensor) -> tuple[Tensor, ...]:
        """What the first layer gets."""
        return (x,) if self._inputs is None else (x, self._inputs(x, *token_ids))

    def end(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The final hidden states."""
        return x


class RoutedBranch:
    """Experts alongside the MLP."""

    def __init__(self, builder: Builder, spec: gemma4.RoutedBranch) -> None:
        self._router_norm, self._scale = builder.norm(spec.router_norm), VectorLayer(builder, spec.router_scale)
        self._router, self._factor = builder.linear(spec.router), spec.router.size**-0.5
        self._norm, self._experts = builder.norm(spec.norm), builder.experts(spec.experts)
        self._after_mlp, self._after = (builder.norm(norm) for norm in spec.posts)
        self._all_reduce = builder.build.parallel.all_reduce

    def __call__(self, x: Tensor, mlp: Tensor) -> Tensor:
        """The normed sum of the MLP's output and that of the experts of ``x``; all ``[tokens, hidden]``."""
        logits = self._router(self._scale(self._router_norm(x)) * self._factor)
        routed = self._all_reduce(self._experts(self._norm(x), logits))
        total: Tensor = self._after_mlp(mlp) + self._after(routed)
        return total


class Gemma4Layer:
    """A whole layer."""

    def __init__(self, builder: Builder, spec: gemma4.Gemma4Layer) -> None:
        self._norm, self._attention = builder.norm(spec.norm), builder.block(spec.attention)
        self._middle, self._mlp = builder.joint(spec.middle), builder.block(spec.mlp)
        self._routed = None if spec.routed is None else RoutedBranch(builder, spec.routed)
        self._end = builder.joint(spec.end)
        self._per_layer = None if spec.per_layer is None else PerLayerGate(builder, spec.per_layer)
        self._per_layer_end = None if spec.per_layer_end is None else builder.joint(spec.per_layer_end)
        self._scale = VectorLayer(builder, spec.scale)

    def __call__(self, x: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """Maps hidden states ``[tokens, hidden]``; passes on what layers get besides. The step comes last."""
        *inputs, step = others
        normed, total = self._middle(self._attention(self._norm(x), step), x)
        out = self._mlp(normed, step)
        if self._routed is not None:
            out = self._routed(total, out)
        _, total = self._end(out, total)
        if self._per_layer is not None and self._per_layer_end is not None:
            _, total = self._per_layer_end(self._per_layer(total, *inputs), total)
        return self._scale(total), *inputs
