"""LayerNorm: norms that subtract the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.layer import Layer, Parameter
from llmk.nn.norm import with_options

if TYPE_CHECKING:
    from llmk.nn.build import Build


class LayerNorm(Layer):
    """``(x - mean(x)) / std(x) * (offset + weight) + bias`` over the last dimension, by the op at ``site``. If
    ``offset`` is not 0, the op's facts have it as ``norm_offset``.

    Attributes:
        weight: ``[size]``; ``None`` unless it is ``weighted``.
        bias: ``[size]``, or ``None``.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None

    def __init__(
        self,
        build: Build,
        prefix: str,
        size: int,
        eps: float,
        *,
        site: str = "layer_norm",
        offset: float = 0.0,
        weighted: bool = True,
        bias: bool = False,
    ) -> None:
        self._norm: Callable[..., Tensor] = with_options(build.kernel("op", site), norm_offset=offset)
        self.eps = eps
        stds = ({"weight": None} if weighted else {}) | ({"bias": 0.02} if bias else {})
        self._named = {
            name: Parameter(build, [f"{prefix}.{name}"], [size], dummy_std=std) for name, std in stds.items()
        }
        super().__init__(build, list(self._named.values()))

    def finish(self) -> None:
        tensors = {name: parameter.take() for name, parameter in self._named.items()}
        self.weight, self.bias = tensors.get("weight"), tensors.get("bias")

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[..., size]`` to ``[..., size]``."""
        return self._norm(x, self.weight, self.bias, self.eps)


class AddLayerNorm:
    """Adds the residual, then normalizes by ``norm``, a :class:`LayerNorm`.

    Args:
        residual_multiplier: factor of what is added to the residual. If it is not 1, the op's facts have it.
        offset: that of ``norm``.
    """

    def __init__(
        self,
        build: Build,
        norm: LayerNorm,
        *,
        site: str = "add_layer_norm",
        residual_multiplier: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        options = {"residual_multiplier": residual_multiplier, "norm_offset": offset}
        self._add_norm: Callable[..., tuple[Tensor, Tensor]] = with_options(build.kernel("op", site), **options)
        self.norm = norm

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the normed sum, and the sum itself as the next residual; all ``[..., size]``.

        If there is no residual yet (``None``), ``x`` is the sum.
        """
        norm = self.norm
        if residual is None:
            return norm(x), x
        return self._add_norm(x, residual, norm.weight, norm.bias, norm.eps)
