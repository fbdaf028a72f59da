"""Mamba-1's convolution and scan, and short convolutions by themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn.context import StepContext
from llmk.nn.layer import Layer
from llmk.nn.recurrent.mixers import state_cache, state_parameter
from llmk.tree.selective_scan import SelectiveScanSizes
from llmk.tree.short_conv import ShortConvSizes

if TYPE_CHECKING:
    from llmk.nn.build import Build


class ShortConv(Layer):
    """The convolution of gated channels, gated again, in one op.

    Args and attributes are those of :class:`~llmk.nn.StateSpaceMixer`.
    """

    def __init__(self, build: Build, prefix: str, sizes: ShortConvSizes, *, index: int, op_site: str) -> None:
        self.cache_spec = state_cache(build, sizes, op_site)
        self._op = partial(build.kernel("op", op_site), gated=True)
        self._index = index
        own, parameter = f"{prefix}.conv", partial(state_parameter, build, sizes=sizes)
        self._weight = parameter(f"{own}.weight", [sizes.channels], columns=(1, sizes.conv_kernel))
        self._bias = parameter(f"{own}.bias", [sizes.channels]) if sizes.conv_bias else None
        super().__init__(build, [self._weight, self._bias] if self._bias else [self._weight])

    def finish(self) -> None:
        self._weights = self._weight.take().squeeze(1), self._bias.take() if self._bias else None

    def __call__(self, projected: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, 3 * channels]`` to ``[tokens, channels]``; both are this rank's share."""
        out: Tensor = self._op(projected, *self._weights, step.caches[self._index], step.meta[self._index])
        return out


class SelectiveScan(Layer):
    """Mamba-1's convolution, and its scan with the gate: an op each, since a projection is between them.

    Args and attributes are those of :class:`~llmk.nn.StateSpaceMixer`; ``conv_site`` is that of the convolution's op.
    """

    def __init__(
        self, build: Build, prefix: str, sizes: SelectiveScanSizes, *, index: int, op_site: str, conv_site: str
    ) -> None:
        self.cache_spec = state_cache(build, sizes, op_site)
        self._scan = build.kernel("op", op_site)
        self._conv = partial(build.kernel("op", conv_site), activation="silu")
        self._index = index
        channels, parameter = [sizes.channels], partial(state_parameter, build, sizes=sizes)
        wide = partial(parameter, dtype=torch.float32, dummy_std=None)
        self._conv_weight = parameter(f"{prefix}.conv1d.weight", channels, columns=(1, sizes.conv_kernel))
        self._conv_bias = parameter(f"{prefix}.conv1d.bias", channels) if sizes.conv_bias else None
        self._a_log = wide(f"{prefix}.A_log", channels, columns=(sizes.state_size,))
        self._d, self._dt_bias = wide(f"{prefix}.D", channels), wide(f"{prefix}.dt_proj.bias", channels)
        parameters = (self._conv_weight, self._conv_bias, self._a_log, self._d, self._dt_bias)
        super().__init__(build, [parameter for parameter in parameters if parameter])

    def finish(self) -> None:
        self._convolved = self._conv_weight.take().squeeze(1), self._conv_bias.take() if self._conv_bias else None
        self._decay, self._skip, self._bias = -self._a_log.take().exp(), self._d.take(), self._dt_bias.take()

    def convolve(self, x: Tensor, step: StepContext) -> Tensor:
        """The activated convolution of channels ``[tokens, channels]`` of this rank, which may be parts of wider
        rows."""
        caches = step.caches[self._index][:1]
        out: Tensor = self._conv(x, *self._convolved, caches, step.meta[self._index])
        return out

    def __call__(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, gate: Tensor, step: StepContext) -> Tensor:
        """The gated scan of ``x``: ``x``, ``dt`` and ``gate`` are ``[tokens, channels]`` of this rank, ``b`` and ``c``
        ``[tokens, state_size]``."""
        cache, meta = step.caches[self._index][1], step.meta[self._index]
        out: Tensor = self._scan(x, dt, self._decay, b, c, self._skip, self._bias, gate, cache, meta)
        return out
