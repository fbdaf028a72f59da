"""Kimi delta attention: its inputs are views of what the projections return."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn import StepContext
from llmk.tree import KimiDeltaSizes

if TYPE_CHECKING:
    from llmk.nn.builder import Builder
    from llmk_models.kimi_delta import KimiDeltaMixer as Spec


class KimiDeltaMixer:
    """Follows ``llmk.nn.blocks.block.Block``."""

    def __init__(self, builder: Builder, spec: Spec) -> None:
        sizes = spec.net.sizes
        assert isinstance(sizes, KimiDeltaSizes)
        self._into, self._beta = builder.linear(spec.into), builder.linear(spec.beta)
        self._decays, self._gates = ([builder.linear(each) for each in chain] for chain in (spec.decays, spec.gates))
        self._net, self._out = builder.delta_net(spec.net), builder.linear(spec.out)
        heads = builder.build.parallel.count(sizes.num_heads)
        self._key, self._value = (heads, sizes.key_dim), (heads, 1, sizes.value_dim)
        self._kinds = tuple(heads * size for size in (sizes.key_dim, sizes.key_dim, sizes.value_dim))

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        q, k, v = self._into(x).split_with_sizes(self._kinds, 1)
        q, k, v = q.unflatten(1, self._key), k.unflatten(1, self._key), v.unflatten(1, self._value)
        a, gate = (reduce(lambda y, linear: linear(y), chain, x) for chain in (self._decays, self._gates))
        a, gate = a.unflatten(1, self._key).unsqueeze(2), gate.unflatten(1, self._value)
        return self._out(self._net(q, k, v, gate, a, self._beta(x).unsqueeze(2), step))
