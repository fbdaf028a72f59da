"""Root-mean-square norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.layer import Layer, Parameter

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.nn.linear import Linear


class RMSNorm(Layer):
    """``x / rms(x) * weight`` over the last dimension, by the op at ``site``."""

    weight: Tensor

    def __init__(self, build: Build, prefix: str, size: int, eps: float, *, site: str = "rms_norm") -> None:
        self._norm: Callable[..., Tensor] = build.kernel("op", site)
        self._eps = eps
        self._weight = Parameter(build, [f"{prefix}.weight"], [size], dummy_std=None)
        super().__init__(build, [self._weight])

    def finish(self) -> None:
        self.weight = self._weight.take()

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[..., size]`` to ``[..., size]``."""
        return self._norm(x, self.weight, self._eps)


class AddRMSNorm(Layer):
    """Adds the residual, then normalizes."""

    weight: Tensor

    def __init__(
        self,
        build: Build,
        prefix: str,
        size: int,
        eps: float,
        *,
        site: str = "add_rms_norm",
        first_site: str = "rms_norm",
    ) -> None:
        self._add_norm: Callable[..., tuple[Tensor, Tensor]] = build.kernel("op", site)
        self._norm: Callable[..., Tensor] = build.kernel("op", first_site)
        self.eps = eps
        self._weight = Parameter(build, [f"{prefix}.weight"], [size], dummy_std=None)
        super().__init__(build, [self._weight])

    def finish(self) -> None:
        self.weight = self._weight.take()

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the normed sum, and the sum itself as the next residual; all ``[..., size]``.

        If there is no residual yet (``None``), ``x`` is the sum.
        """
        if residual is None:
            return self._norm(x, self.weight, self.eps), x
        return self._add_norm(x, residual, self.weight, self.eps)


class NormedLinear:
    """A norm and the linear layer after it, by the one op at ``site``. The norm and the linear layer own their
    parameters.

    Args:
        linear: the linear layer whose kernel is a part of the op at ``site``.
    """

    def __init__(self, build: Build, norm: AddRMSNorm, linear: Linear, *, site: str) -> None:
        self._op: Callable[..., tuple[Tensor, Tensor]] = build.kernel("op", site, linear=linear.site)
        self._norm = norm
        self._linear = linear

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Maps ``[tokens, hidden]`` to the op's output for the normed sum, and the sum itself as the next residual."""
        norm, linear = self._norm, self._linear
        return self._op(x, residual, norm.weight, norm.eps, linear.weight, linear.bias)


class SandwichNorm(Layer):
    """Norms a block's output, adds the residual, and norms the sum for the next block (Gemma 2): one op with two
    weights.

    Args:
        post: the checkpoint's name of the norm after the block; ``None`` before the first block.
        pre: the checkpoint's name of the norm before the next block.
    """

    def __init__(
        self,
        build: Build,
        post: str | None,
        pre: str,
        size: int,
        eps: float,
        *,
        site: str = "sandwich_norm_plus_one",
        first_site: str = "rms_norm_plus_one",
    ) -> None:
        self._sandwich: Callable[..., tuple[Tensor, Tensor]] = build.kernel("op", site)
        self._norm: Callable[..., Tensor] = build.kernel("op", first_site)
        self._eps = eps
        names = [pre] if post is None else [post, pre]
        super().__init__(build, [Parameter(build, [f"{name}.weight"], [size], dummy_std=None) for name in names])

    def finish(self) -> None:
        self._weights = [parameter.take() for parameter in self.parameters]

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the normed sum, and the sum itself as the next residual; all ``[..., size]``.

        If there is no residual yet (``None``), so no previous block, ``x`` is the sum.
        """
        if residual is None:
            return self._norm(x, *self._weights, self._eps), x
        return self._sandwich(x, residual, *self._weights, self._eps)
