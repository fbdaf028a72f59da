"""Sublayers of a residual stream: a norm, with the sum before it, and a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.blocks.block import Block, Entered
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer, Parameter
from llmk.nn.norm import AddLayerNorm, AddRMSNorm, LayerNorm, NormAdd, SandwichNorm, with_options
from llmk.nn.parallel import Parallel

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.build import Build
    from llmk.nn.builder import Builder
    from llmk.nn.linear import Linear

Join = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""From the output of the block before and the residual, to the input of the next block and the next residual; all are
``[tokens, hidden]``. There is no residual before the first block."""


class NormWeight(Layer):
    """The weight of a norm that is part of a larger op."""

    weight: Tensor

    def __init__(self, build: Build, spec: tree.Norm) -> None:
        self.eps = spec.eps
        super().__init__(build, [Parameter(build, [f"{spec.at}.weight"], [spec.size], dummy_std=None)])

    def finish(self) -> None:
        self.weight = self.parameters[0].take()


class Normed:
    """A joint, then a block."""

    def __init__(self, join: Join, block: Block) -> None:
        self._join = join
        self._block = block

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """Maps the output of the block before and the residual to the block's output and the next residual."""
        x, residual = self._join(x, residual)
        return self._block(x, step), residual


class Fused:
    """One op for the sum, the norm and the start of a block, then the rest of the block. ``op`` has its options."""

    def __init__(self, op: Callable[..., Any], norm: NormWeight, linear: Linear, block: Entered) -> None:
        self._op, self._norm, self._linear, self._after = op, norm, linear, block.after

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """As :class:`Normed`."""
        norm, linear = self._norm, self._linear
        *first, total = self._op(x, residual, norm.weight, norm.eps, linear.weight, linear.bias)
        return self._after(*first, step=step), total


class FirstNorm(NormWeight):
    """The norm before the first block."""

    def __init__(self, build: Build, spec: tree.Norm, site: str) -> None:
        self._op: Callable[..., Tensor] = with_options(build.kernel("op", site), norm_offset=spec.offset)
        super().__init__(build, spec)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :data:`Join`."""
        return self._op(x, self.weight, self.eps), x


class OnlyNorm:
    """A norm that subtracts the mean, before the first block."""

    def __init__(self, norm: LayerNorm) -> None:
        self._norm = norm

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :data:`Join`."""
        return self._norm(x), x


class Sum:
    """The sum alone."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :data:`Join`."""
        if residual is None:
            return x, x
        total = residual + (x if self._scale == 1.0 else x * self._scale)
        return total, total


class PostNormed:
    """The norm after a block, and the sum; the next block's input is not normed."""

    def __init__(self, norm: NormAdd) -> None:
        self._norm = norm

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :data:`Join`."""
        assert residual is not None
        total = self._norm(x, residual)
        return total, total


class RankSum:
    """The sum over tensor-parallel ranks of what the block before computed, and a joint: both at once for a ``norm``
    that the platform has such a kernel for."""

    def __init__(self, parallel: Parallel, join: Join, norm: AddRMSNorm | None) -> None:
        self._parallel, self._join, self._norm = parallel, join, norm

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :data:`Join`."""
        if self._norm is not None and residual is not None:
            found = self._parallel.add_rms_norm(x, residual, self._norm.weight, self._norm.eps)
            if found is not None:
                return found
        return self._join(self._parallel.all_reduce(x), residual)


def make_joint(builder: Builder, spec: tree.Joint) -> Join:
    """The sums and the norms of a joint."""
    join = _after_ranks(builder, spec)
    if not spec.sums:
        return join
    plain = spec.sum_op == "add_rms_norm" and spec.scale == 1.0 and spec.norm is not None and not spec.norm.offset
    return RankSum(builder.build.parallel, join, join if plain and isinstance(join, AddRMSNorm) else None)


def _after_ranks(builder: Builder, spec: tree.Joint) -> Join:
    """The sum with the residual and the norms."""
    build, norm, post = builder.build, spec.norm, spec.post
    if norm is None and post is None:
        return Sum(spec.scale)
    if norm is None:
        assert post is not None
        return PostNormed(NormAdd(build, post.at, post.size, post.eps, site=builder.op(spec), offset=post.offset))
    first_site, *others = builder.ops(spec)
    if norm.centered:
        own_norm = builder.layer_norm(norm, first_site)
        return (
            OnlyNorm(own_norm)
            if spec.first
            else AddLayerNorm(build, own_norm, site=others[0], residual_multiplier=spec.scale, offset=norm.offset)
        )
    if spec.first:
        return FirstNorm(build, norm, first_site)
    own: dict[str, Any] = {"first_site": first_site, "site": others[0], "offset": norm.offset}
    if post is None:
        return AddRMSNorm(build, norm.at, norm.size, norm.eps, residual_multiplier=spec.scale, **own)
    return SandwichNorm(build, post.at, norm.at, norm.size, norm.eps, **own)
