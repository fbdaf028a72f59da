"""The modules of :mod:`llmk_models.gemma3n`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn import StepContext
from llmk_models.per_layer_modules import PerLayerGate, PerLayerInputs
from llmk_models.vector_layer import VectorLayer

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import gemma3n

_LEAST = 1e-5
"""Least mean square of a stream."""


class AltUpStream:
    """All streams side by side, ``[tokens, streams * hidden]``, and what each layer gets besides."""

    def __init__(self, builder: Builder, spec: gemma3n.AltUpStream) -> None:
        self._inputs = PerLayerInputs(builder, spec.inputs)
        self._spread, self._gather = (list(map(builder.linear, each)) for each in (spec.spread, spec.gather))

    def start(self, x: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer gets."""
        streams = [x, *(_like(x, project(x)) for project in self._spread)]
        return torch.cat(streams, dim=1), self._inputs(x, token_ids)

    def end(self, streams: Tensor, inputs: Tensor) -> Tensor:
        """The mean of all streams: the final hidden states."""
        first, *others = streams.chunk(1 + len(self._gather), dim=1)
        total = first
        for project, x in zip(self._gather, others, strict=True):
            total = total + _like(first, project(x))
        return total / (1 + len(others))


def _like(x: Tensor, other: Tensor) -> Tensor:
    """``other`` with the magnitude of ``x``, row by row."""
    wanted = x.square().mean(dim=-1, keepdim=True).sqrt()
    return other * wanted / other.square().mean(dim=-1, keepdim=True).clamp(min=_LEAST).sqrt()


class AltUp:
    """Predicts and corrects streams, ``[tokens, streams, hidden]``."""

    def __init__(self, builder: Builder, spec: gemma3n.AltUp) -> None:
        self._norm, self._router = builder.norm(spec.norm), builder.linear(spec.router)
        self._predict, self._correct = builder.linear(spec.predict), builder.linear(spec.correct)
        self._scale = None if spec.scale is None else VectorLayer(builder, spec.scale)
        self._factor, self.active = spec.router.size**-1, spec.active

    def predict(self, streams: Tensor) -> Tensor:
        """All streams before the layer."""
        coefficients = self._predict(self._modalities(streams[:, self.active]))
        predicted: Tensor = streams + coefficients.unflatten(1, (streams.shape[1], -1)) @ streams
        return predicted

    def correct(self, streams: Tensor, computed: Tensor) -> Tensor:
        """All streams, from those predicted, and from what the layer computed of the active one."""
        coefficients = self._correct(self._modalities(computed)) + 1.0
        innovation = computed - streams[:, self.active]
        corrected: Tensor = streams + innovation[:, None] * coefficients[:, :, None]
        return corrected

    def scaled(self, streams: Tensor) -> Tensor:
        """The active stream, as the layer's own embedding sees it."""
        active = streams[:, self.active]
        return active if self._scale is None else self._scale(active)

    def _modalities(self, x: Tensor) -> Tensor:
        return torch.tanh(self._router(self._norm(x) * self._factor).float()).to(x.dtype)


class SparseMLP:
    """An MLP of which most gates are 0."""

    def __init__(self, builder: Builder, spec: gemma3n.SparseMLP) -> None:
        self._gate_up, self._down = builder.linear(spec.gate_up), builder.linear(spec.down)
        self._activate, self._parallel = builder.kernel(spec), builder.build.parallel
        self._cutoff, self._size = spec.cutoff, spec.down.size

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to the same."""
        gate, up = self._gate_up(x).chunk(2, dim=1)
        wide = gate.float()
        sums = torch.stack((wide.sum(dim=1), wide.square().sum(dim=1)))  # over the features of all ranks
        mean, square = (self._parallel.all_reduce(sums) / self._size).unsqueeze(2)
        least = mean + self._cutoff * (square - mean.square()).clamp(min=0.0).sqrt()
        return self._down(self._activate(torch.cat(((wide - least).clamp(min=0.0).to(gate.dtype), up), dim=1)))


class Gemma3nLayer:
    """A whole layer."""

    def __init__(self, builder: Builder, spec: gemma3n.Gemma3nLayer) -> None:
        self._altup, self._norm = AltUp(builder, spec.altup), builder.norm(spec.norm)
        self._hidden_size = spec.norm.size
        self._left, self._right = map(builder.linear, spec.laurel)
        self._laurel_norm = builder.joint(spec.laurel_norm)
        self._attention, self._middle = builder.block(spec.attention), builder.joint(spec.middle)
        self._mlp_norm, self._mlp, self._end = (
            builder.norm(spec.mlp_norm),
            builder.block(spec.mlp),
            builder.joint(spec.end),
        )
        self._per_layer, self._per_layer_norm = (
            PerLayerGate(builder, spec.per_layer),
            builder.norm(spec.per_layer_norm),
        )

    def __call__(self, streams: Tensor, inputs: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """Maps the streams; passes on what layers get besides."""
        predicted = self._altup.predict(streams.unflatten(1, (-1, self._hidden_size)))
        active = predicted[:, self._altup.active]
        normed = self._norm(active)
        _, residual = self._laurel_norm(self._right(self._left(normed)), normed)
        _, attended = self._middle(self._attention(normed, step), active)
        total = (attended + residual) * 2**-0.5
        _, computed = self._end(self._mlp(self._mlp_norm(total), step), total)
        corrected = self._altup.correct(predicted, computed)
        own = self._per_layer_norm(self._per_layer(self._altup.scaled(corrected), inputs))
        corrected[:, 1:] += own[:, None]
        return corrected.flatten(1), inputs
