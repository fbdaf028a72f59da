"""Layers that cache a state of fixed size instead of an entry per token. They run between a model's linear layers.

Tensor-parallel ranks shard the layer, and its state, by its ``units`` (:mod:`llmk.tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.api import OpQuery, RecurrentCache
from llmk.api.facts import in_state_dtype
from llmk.api.sharding import sharded_state
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer, Parameter
from llmk.tree import DeltaNetSizes, Recurrent, RecurrentSizes, StateSpaceSizes

if TYPE_CHECKING:
    from llmk.nn.build import Build


class StateSpaceMixer(Layer):
    """Mamba-2 mixer: convolution, selective scan, gate and norm in one op.

    Args:
        prefix: the mixer's name in the checkpoint.
        index: position of this layer's cache in ``StepContext.caches``.
        eps: epsilon of the norm.
        op_site: the site of the op; empty: the one that the sizes have by default.

    Attributes:
        cache_spec: the cache spec of the layer's state.
    """

    def __init__(
        self, build: Build, prefix: str, sizes: StateSpaceSizes, *, index: int, eps: float, op_site: str = ""
    ) -> None:
        self.cache_spec = state_cache(build, sizes, op_site)
        self._op = partial(build.kernel("op", op_site or sizes.site), **sizes.options)
        self._index = index
        self._eps = eps
        self._limits = sizes.dt_limits
        self._conv_weight = _conv_weight(build, prefix, sizes)
        self._conv_bias = (
            state_parameter(build, f"{prefix}.conv1d.bias", sizes.conv_parts, sizes) if sizes.conv_bias else None
        )
        self._a_log, self._d, self._dt_bias = (
            _per_head(build, f"{prefix}.{name}", sizes) for name in ("A_log", "D", "dt_bias")
        )
        has_norm = sizes.gating != "gate_only"
        norm = partial(state_parameter, build, f"{prefix}.norm.weight", [sizes.inner_size], sizes, dummy_std=None)
        self._norm = norm() if has_norm else None
        parameters = (self._conv_weight, self._conv_bias, self._a_log, self._d, self._dt_bias, self._norm)
        super().__init__(build, [parameter for parameter in parameters if parameter])

    def finish(self) -> None:
        self._weights = (
            self._conv_weight.take().squeeze(1),
            self._conv_bias.take() if self._conv_bias else None,
            -self._a_log.take().exp(),
            self._d.take(),
            self._dt_bias.take(),
            self._limits,
            self._norm.take() if self._norm else None,
        )

    def __call__(self, projected: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, sum(sizes.projected_parts)]`` (gate, channels of the convolution, step sizes) to ``[tokens,
        inner]``; both are this rank's share."""
        out: Tensor = self._op(projected, *self._weights, self._eps, step.caches[self._index], step.meta[self._index])
        return out


class GatedDeltaNet(Layer):
    """Convolution, gated delta rule, norm and gate in one op.

    Args and attributes are those of :class:`StateSpaceMixer`.
    """

    def __init__(
        self, build: Build, prefix: str, sizes: DeltaNetSizes, *, index: int, eps: float, op_site: str = ""
    ) -> None:
        self.cache_spec = state_cache(build, sizes, op_site)
        self._op = partial(build.kernel("op", op_site or sizes.site), **sizes.options)
        self._index = index
        self._eps = eps
        self._decays = sizes.decays[1:]
        stored, parts = sizes.conv_weights(prefix), [(size, sizes.units) for size in sizes.conv_parts]
        groups = [parts] if len(stored) == 1 else [[part] for part in parts]
        kept = [build.parallel.shares(group) for group in groups]
        self._conv_weight = Parameter(build, [*stored], [*stored.values()], (1, sizes.conv_kernel), kept_rows=kept)
        self._a_log = _per_head(build, f"{prefix}.A_log", sizes)
        self._dt_bias = _per_head(build, f"{prefix}.dt_bias", sizes, prod(self._decays))
        self._norm = Parameter(build, [f"{prefix}.{sizes.norm_name}.weight"], [sizes.value_dim], dummy_std=None)
        super().__init__(build, [self._conv_weight, self._a_log, self._dt_bias, self._norm])

    def finish(self) -> None:
        self._weights = (
            self._conv_weight.take().squeeze(1),
            -self._a_log.take().exp(),
            self._dt_bias.take().unflatten(0, (-1, *self._decays)),
            self._norm.take(),
        )

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, a: Tensor, b: Tensor, step: StepContext
    ) -> Tensor:
        """Maps queries and keys ``[tokens, key_heads, key_dim]``, values and gates ``[tokens, key_heads, shared,
        value_dim]``, where ``shared`` heads share a key head, and ``a`` and ``b`` ``[tokens, key_heads, shared]``, or
        ``a`` ``[tokens, key_heads, shared, key_dim]``, to ``[tokens, heads * value_dim]``; all are this rank's share.
        They may be parts of wider rows."""
        caches, meta = step.caches[self._index], step.meta[self._index]
        out: Tensor = self._op(q, k, v, gate, a, b, *self._weights, self._eps, caches, meta)
        return out


def state_cache(build: Build, sizes: RecurrentSizes, op_site: str) -> RecurrentCache:
    """The cache spec of this rank's share of a recurrent layer, whose op is at ``op_site``."""
    query = build.plan.choice("op", op_site or sizes.site).query
    kept = query.facts.get("state_dtype", "float32") if isinstance(query, OpQuery) else "float32"
    state = in_state_dtype(Recurrent(sizes=sizes, eps=0.0).site(build.plan.dtype), kept)
    share = sharded_state(state, build.parallel.tensor_size)
    return RecurrentCache.of(share.tensors, share.inputs)


def state_parameter(
    build: Build, name: str, parts: Sequence[int], sizes: RecurrentSizes, columns: Sequence[int] = (), **options: Any
) -> Parameter:
    """The parameter for a tensor of consecutive ``parts``; this rank keeps a share of each."""
    kept = build.parallel.shares([(size, sizes.units) for size in parts])
    return Parameter(build, [name], [sum(parts)], columns, kept_rows=[kept], **options)


def _conv_weight(build: Build, prefix: str, sizes: StateSpaceSizes) -> Parameter:
    return state_parameter(build, f"{prefix}.conv1d.weight", sizes.conv_parts, sizes, (1, sizes.conv_kernel))


def _per_head(build: Build, name: str, sizes: StateSpaceSizes | DeltaNetSizes, each: int = 1) -> Parameter:
    """A parameter that controls a head's decay, or ``each`` of its decays: float32 in an engine of any dtype, because
    small changes accumulate over many tokens."""
    return state_parameter(build, name, [sizes.num_heads * each], sizes, dtype=torch.float32, dummy_std=None)
