"""A family whose layers pass on a sum of one tensor, by specs and classes of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from llmk.nn import Builder, StepContext
from llmk.tree import Block, Carried, CausalLM, Config, Norm, Residual, Spec, Stream
from llmk_models import dense

own_dense_tree = dense.tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Spec):
    """``x + block(norm(x))``."""

    implementation: ClassVar[str] = "streams:BuiltPart"

    norm: Norm
    block: Block


class BuiltPart:
    """What a :class:`Part` computes."""

    def __init__(self, builder: Builder, spec: Part) -> None:
        self._norm, self._block = builder.norm(spec.norm), builder.block(spec.block)

    def __call__(self, x: Tensor, step: StepContext) -> tuple[Tensor]:
        return (x + self._block(self._norm(x), step),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(Stream):
    """One tensor."""

    implementation: ClassVar[str] = "streams:BuiltStream"


class BuiltStream:
    """Starts and ends a :class:`Plain` stream."""

    def __init__(self, builder: Builder, spec: Plain) -> None: ...

    def start(self, x: Tensor) -> tuple[Tensor]:
        return (x,)

    def end(self, x: Tensor) -> Tensor:
        return x


def tree(config: Config) -> CausalLM:
    """A dense family with other layers."""
    model = own_dense_tree(config)

    def part(residual: Any) -> Part:
        assert isinstance(residual, Residual)
        assert residual.norm is not None
        return Part(norm=replace(residual.norm, role="stream_norm"), block=residual.block)

    layers = tuple(tuple(map(part, layer)) for layer in model.layers)
    return replace(model, layers=layers, stream=Plain(carried=(Carried(model.embed.size),)))
