"""Short causal convolutions as mixers of their own (arXiv:2511.23404)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmk.api import StateTensor
from llmk.tree.block import Block
from llmk.tree.linear import Linear, Part
from llmk.tree.recurrent import ChannelSizes, Recurrent
from llmk.tree.spec import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSizes(ChannelSizes):
    """Sizes of a convolution of gated channels; ``site``, ``divided`` and ``state_divided`` as in
    :class:`~llmk.tree.StateSpaceSizes`."""

    site: ClassVar[str] = "short_conv"
    state_divided: ClassVar[tuple[int, ...]] = (1,)

    conv_bias: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op."""
        return {"channels": self.channels, "conv_kernel": self.conv_kernel, "gated": True, "activation": ""}

    def state(self, dtype: str) -> tuple[StateTensor, ...]:
        """The state tensor of one layer; ``dtype`` is the engine's."""
        return (StateTensor("conv", (self.conv_kernel - 1, self.channels), dtype),)

    def inputs(self, dtype: str) -> tuple[StateTensor, ...]:
        """What a token adds to the state: its gated channels."""
        return (StateTensor("conv", (self.channels,), dtype),)

    def tensors(self, at: str) -> tuple[Tensor, ...]:
        """The tensors of the mixer ``at``, apart from its projections."""
        bias = (Tensor(f"{at}.conv.bias", (self.channels,)),) if self.conv_bias else ()
        return Tensor(f"{at}.conv.weight", (self.channels, 1, self.conv_kernel)), *bias


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvMixer(Block):
    """A projection to two gates and channels; the convolution of the channels times the first gate, times the second; a
    projection."""

    into: Linear
    conv: Recurrent
    out: Linear

    @classmethod
    def of(cls, at: str, hidden_size: int, sizes: ShortConvSizes) -> Self:
        """With the usual names. The projections have biases if the convolution has."""
        outputs, width = (Part(sizes.channels, sizes.units),) * 3, sizes.channels
        into: dict[str, Any] = {"size": hidden_size, "outputs": outputs, "bias": sizes.conv_bias, "cut": "column"}
        return cls(
            at=at,
            into=Linear(at=f"{at}.in_proj", role="conv_in", **into),
            conv=Recurrent(at=at, sizes=sizes, eps=0.0),
            out=Linear.row(f"{at}.out_proj", "conv_out", width, hidden_size, bias=sizes.conv_bias),
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))
