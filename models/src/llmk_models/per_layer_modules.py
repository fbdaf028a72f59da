"""The modules of :mod:`llmk_models.per_layer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn import Embedding

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import per_layer


class PerLayerInputs:
    """What all layers get besides hidden states."""

    def __init__(self, builder: Builder, spec: per_layer.PerLayerInputs) -> None:
        table = spec.table
        own: dict[str, Any] = {"site": builder.op(table), "scale": table.scale}
        self._table = Embedding(builder.build, table.at, table.vocab_size, table.size, **own)
        self._projection, self._norm = builder.linear(spec.projection), builder.norm(spec.norm)
        self._width, self._vocab_size = spec.width, table.vocab_size
        self._factor = spec.projection.size**-0.5

    def __call__(self, x: Tensor, token_ids: Tensor) -> Tensor:
        """From embeddings ``[tokens, hidden]`` and token ids ``[tokens]`` to ``[tokens, layers * width]``. Ids that the
        table lacks, as those of images are, count as 0."""
        looked_up = self._table(token_ids.masked_fill(token_ids >= self._vocab_size, 0))
        projected = (self._projection(x) * self._factor).unflatten(1, (-1, self._width))
        total: Tensor = (self._norm(projected).flatten(1) + looked_up) * 2**-0.5
        return total


class PerLayerGate:
    """How a layer uses its own part of the inputs."""

    def __init__(self, builder: Builder, spec: per_layer.PerLayerGate) -> None:
        self._gate, self._projection = builder.linear(spec.gate), builder.linear(spec.projection)
        self._activate, self._name = builder.kernel(spec.activation), spec.activation.name
        width = spec.activation.size
        self._own = slice(spec.index * width, (spec.index + 1) * width)

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """From ``x`` ``[tokens, hidden]`` and the inputs of all layers to ``[tokens, hidden]``."""
        return self._projection(self._activate(self._gate(x), self._name) * inputs[:, self._own])
