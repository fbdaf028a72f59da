"""Root-mean-square norms, and norms that subtract the mean (LayerNorm)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn.layer import Layer, Parameter
from llmk.nn.parallel import Parallel

if TYPE_CHECKING:
    from llmk.nn.build import Build


_NEUTRAL = {"norm_offset": 0.0, "residual_multiplier": 1.0}


def with_options(kernel: Callable[..., Any], **options: float) -> Callable[..., Any]:
    """``kernel`` with those of the keyword arguments that are not neutral, which the facts of its site have, too."""
    given = {name: value for name, value in options.items() if value != _NEUTRAL[name]}
    return partial(kernel, **given) if given else kernel


class RMSNorm(Layer):
    """``x / rms(x) * (offset + weight)`` over the last dimension, by the op at ``site``. If ``offset`` is not 0, the
    op's facts have it as ``norm_offset``. Unless ``weighted``, the weight is 1, and not in the checkpoint."""

    weight: Tensor

    def __init__(
        self,
        build: Build,
        prefix: str,
        size: int,
        eps: float,
        *,
        site: str = "rms_norm",
        offset: float = 0.0,
        weighted: bool = True,
    ) -> None:
        self._norm: Callable[..., Tensor] = with_options(build.kernel("op", site), norm_offset=offset)
        self._eps = eps
        self._weight = Parameter(build, [f"{prefix}.weight"], [size], dummy_std=None) if weighted else None
        if self._weight is None:
            self.weight = torch.ones(size, dtype=build.dtype, device=build.device)
        super().__init__(build, [self._weight] if self._weight else [])

    def finish(self) -> None:
        if self._weight is not None:
            self.weight = self._weight.take()

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[..., size]`` to ``[..., size]``."""
        return self._norm(x, self.weight, self._eps)


class HeadsNorm(Layer):
    """A root-mean-square norm over all heads together, by the op at ``site`` over ``num_heads * head_dim`` elements.
    Tensor-parallel ranks, each of which has some of the heads, gather all of them. ``offset`` as in
    :class:`RMSNorm`."""

    def __init__(
        self, build: Build, prefix: str, num_heads: int, head_dim: int, eps: float, *, site: str, offset: float = 0.0
    ) -> None:
        self._norm: Callable[..., Tensor] = with_options(build.kernel("op", site), norm_offset=offset)
        self._eps = eps
        self._parallel = build.parallel
        size, ranks = num_heads * head_dim, build.parallel.tensor_size
        # Heads that several ranks have are gathered as often. All are then, so the mean of squares is the same.
        runs = [Parallel(rank, ranks).share(size, num_heads) for rank in range(ranks)]
        self._parameter = Parameter(build, [f"{prefix}.weight"], [size], dummy_std=None, kept_rows=[runs])
        super().__init__(build, [self._parameter])

    def finish(self) -> None:
        self.weight = self._parameter.take()

    def __call__(self, x: Tensor) -> Tensor:
        """Maps this rank's heads, ``[tokens, heads, head_dim]``, to the same."""
        rows = x.flatten(1)
        if self._parallel.tensor_size == 1:
            return self._norm(rows, self.weight, self._eps).view(x.shape)
        normed: Tensor = self._norm(self._parallel.all_gather(rows), self.weight, self._eps)
        start = self._parallel.tensor_rank * rows.shape[1]
        return normed[:, start : start + rows.shape[1]].view(x.shape)


class HeadNorms(Layer):
    """A norm of each head by itself that subtracts the mean, by the op at ``site`` over ``head_dim`` elements, with a
    weight for each head. Tensor-parallel ranks have those of their heads. Checkpoints store ``{prefix}.weight``,
    ``[heads, head_dim]``, or, where ``prefix`` has ``{}`` in place of a head's number, a weight ``[head_dim]`` each."""

    def __init__(self, build: Build, prefix: str, num_heads: int, head_dim: int, eps: float, *, site: str) -> None:
        self._norm: Callable[..., Tensor] = build.kernel("op", site)
        self._eps = eps
        heads, own = range(num_heads), build.parallel.share(num_heads)
        names, rows, kept = [f"{prefix}.weight"], [num_heads], [[own]]
        if "{}" in prefix:
            names, rows = [names[0].format(head) for head in heads], [1] * num_heads
            kept = [[slice(0, 1)] if head in heads[own] else [] for head in heads]
        self._parameter = Parameter(build, names, rows, [head_dim], dummy_std=None, kept_rows=kept)
        super().__init__(build, [self._parameter])

    def finish(self) -> None:
        self.weight = self._parameter.take()

    def __call__(self, x: Tensor) -> Tensor:
        """Maps this rank's heads, ``[tokens, heads, head_dim]``, to the same."""
        return self._norm(x, None, None, self._eps) * self.weight


class NormAdd(Layer):
    """Norms a block's output and adds the residual, for blocks whose input is not normed (OLMo 2)."""

    weight: Tensor

    def __init__(
        self, build: Build, prefix: str, size: int, eps: float, *, site: str = "rms_norm_add", offset: float = 0.0
    ) -> None:
        self._norm_add: Callable[..., Tensor] = with_options(build.kernel("op", site), norm_offset=offset)
        self._eps = eps
        self._weight = Parameter(build, [f"{prefix}.weight"], [size], dummy_std=None)
        super().__init__(build, [self._weight])

    def finish(self) -> None:
        self.weight = self._weight.take()

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """Maps a block's output and its input, both ``[..., size]``, to the next block's input."""
        return self._norm_add(x, residual, self.weight, self._eps)


class AddRMSNorm(Layer):
    """Adds the residual, then normalizes.

    Args:
        residual_multiplier: factor of what is added to the residual (Granite). If it is not 1, the op's facts have it.
        offset: as in :class:`RMSNorm`.
    """

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
        residual_multiplier: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        add_norm, norm = build.kernel("op", site), build.kernel("op", first_site)
        self._add_norm: Callable[..., tuple[Tensor, Tensor]] = with_options(
            add_norm, residual_multiplier=residual_multiplier, norm_offset=offset
        )
        self._norm: Callable[..., Tensor] = with_options(norm, norm_offset=offset)
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


class SandwichNorm(Layer):
    """Norms a block's output, adds the residual, and norms the sum for the next block (Gemma 2): one op with two
    weights.

    Args:
        post: the checkpoint's name of the norm after the block; ``None`` before the first block.
        pre: the checkpoint's name of the norm before the next block.
        offset: of both norms, as in :class:`RMSNorm`.
    """

    def __init__(
        self,
        build: Build,
        post: str | None,
        pre: str,
        size: int,
        eps: float,
        *,
        site: str = "sandwich_norm",
        first_site: str = "rms_norm",
        offset: float = 0.0,
    ) -> None:
        sandwich, norm = build.kernel("op", site), build.kernel("op", first_site)
        self._sandwich: Callable[..., tuple[Tensor, Tensor]] = with_options(sandwich, norm_offset=offset)
        self._norm: Callable[..., Tensor] = with_options(norm, norm_offset=offset)
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
