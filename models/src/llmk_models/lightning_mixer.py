"""MiniMax's layers: lightning attention with its projections, and what passes from layer to layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn import StepContext
from llmk.nn.norm import HeadsNorm
from llmk.tree import LightningSizes

if TYPE_CHECKING:
    from llmk.nn.builder import Builder
    from llmk_models import minimax


class LightningMixer:
    """Follows ``llmk.nn.blocks.block.Block``."""

    def __init__(self, builder: Builder, spec: minimax.LightningMixer) -> None:
        sizes, norm = spec.scan.sizes, spec.norm
        assert isinstance(sizes, LightningSizes)
        self._head_dim = sizes.head_dim
        self._into, self._gate_proj, self._out = map(builder.linear, (spec.into, spec.gate_proj, spec.out))
        self._scan, self._gate = builder.lightning(spec.scan, spec.decays), builder.kernel(spec.gate)
        of_heads = sizes.num_heads, sizes.head_dim
        self._norm = HeadsNorm(builder.build, norm.at, *of_heads, norm.eps, site=builder.op(norm))

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        q, k, v = (part.unflatten(1, (-1, self._head_dim)) for part in self._into(x).chunk(3, 1))
        normed = self._norm(self._scan(q, k, v, step).unflatten(1, (-1, self._head_dim))).flatten(1)
        return self._out(self._gate(normed, self._gate_proj(x)))


class NormedResidual:
    """A norm and a block, which is added to what is normed."""

    def __init__(self, builder: Builder, spec: minimax.NormedResidual) -> None:
        self._norm, self._block = builder.norm(spec.norm), builder.block(spec.block)
        self._keep, self._add = spec.keep, spec.add

    def __call__(self, x: Tensor, step: StepContext) -> tuple[Tensor]:
        """Maps hidden states ``[tokens, hidden]`` to the next ones."""
        x = self._norm(x)
        return (x * self._keep + self._block(x, step) * self._add,)


class OneStream:
    """Passes hidden states on as they are."""

    def __init__(self, builder: Builder, spec: minimax.OneStream) -> None: ...

    def start(self, x: Tensor) -> tuple[Tensor]:
        """What the first layer gets."""
        return (x,)

    def end(self, x: Tensor) -> Tensor:
        """What the last norm gets."""
        return x
