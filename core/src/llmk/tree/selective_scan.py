"""Mamba-1's mixer (arXiv:2312.00752): every channel has a state of its own, and decays of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmk.api import OpFacts, StateTensor
from llmk.tree.block import Block
from llmk.tree.linear import Linear, Part
from llmk.tree.norm import Norm
from llmk.tree.recurrent import ChannelSizes, Recurrent
from llmk.tree.spec import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveScanSizes(ChannelSizes):
    """Sizes of Mamba-1's scan and of the convolution before it; ``site``, ``divided`` and ``state_divided`` as in
    :class:`~llmk.tree.StateSpaceSizes`. It names no inputs: drafts would need those of a projection between the two."""

    site: ClassVar[str] = "selective_scan"
    state_divided: ClassVar[tuple[int, ...]] = (1, 0)

    state_size: int
    conv_bias: bool = True

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op."""
        return {"channels": self.channels, "state_size": self.state_size}

    @property
    def conv_op(self) -> OpFacts:
        """The convolution, which is an op by itself."""
        facts = {"channels": self.channels, "conv_kernel": self.conv_kernel, "gated": False, "activation": "silu"}
        return OpFacts(site=f"{self.site}.conv", op="short_conv", facts=facts, divided=("channels",))

    def state(self, dtype: str) -> tuple[StateTensor, ...]:
        """The state tensors of one layer; ``dtype`` is the engine's."""
        window = StateTensor("conv", (self.conv_kernel - 1, self.channels), dtype)
        return window, StateTensor("channels", (self.channels, self.state_size), "float32", accumulates=True)

    def inputs(self, dtype: str) -> tuple[StateTensor, ...]:
        """None."""
        return ()

    def tensors(self, at: str) -> tuple[Tensor, ...]:
        """The tensors of the mixer ``at``, apart from its projections' weights."""
        channels = self.channels
        bias = (Tensor(f"{at}.conv1d.bias", (channels,)),) if self.conv_bias else ()
        return (
            Tensor(f"{at}.conv1d.weight", (channels, 1, self.conv_kernel)),
            *bias,
            Tensor(f"{at}.A_log", (channels, self.state_size)),
            *(Tensor(f"{at}.{name}", (channels,)) for name in ("D", "dt_proj.bias")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveMixer(Block):
    """Projection to channels and their gates, convolution, projections to step sizes, B and C, scan, projection."""

    into: Linear
    vectors: Linear
    """From the convolution to what step sizes are projected from, B, and C."""
    steps: Linear
    norms: tuple[Norm, ...]
    """Of the three parts of ``vectors``; empty: they are not normed."""
    scan: Recurrent
    out: Linear

    @classmethod
    def of(
        cls,
        at: str,
        hidden_size: int,
        rank: int,
        sizes: SelectiveScanSizes,
        *,
        bias: bool,
        norms: tuple[Norm, ...] = (),
    ) -> Self:
        """With the usual names; ``rank`` is the width of what step sizes are projected from, ``bias`` whether the first
        and the last projection have biases."""
        channels = sizes.channels
        halves: dict[str, Any] = {"outputs": (Part(channels, channels),) * 2, "cut": "column"}
        vectors = f"{at}.x_proj", "scan_vectors", channels, rank + 2 * sizes.state_size
        return cls(
            at=at,
            into=Linear(at=f"{at}.in_proj", role="scan_in", size=hidden_size, bias=bias, **halves),
            vectors=Linear.row(*vectors),
            steps=Linear.column(f"{at}.dt_proj", "scan_steps", rank, channels),
            norms=norms,
            scan=Recurrent(at=at, sizes=sizes, eps=0.0),
            out=Linear.row(f"{at}.out_proj", "scan_out", channels, hidden_size, bias=bias),
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))
