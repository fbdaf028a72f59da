"""The gated delta rule with projections that are stored one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn import StepContext
from llmk.tree import DeltaNetSizes

if TYPE_CHECKING:
    from llmk.nn.builder import Builder
    from llmk_models.qwen3_5 import SplitDeltaMixer as Spec


class SplitDeltaMixer:
    """Follows ``llmk.nn.blocks.block.Block``. The rule takes queries, keys and values separately."""

    def __init__(self, builder: Builder, spec: Spec) -> None:
        sizes, count = spec.net.sizes, builder.build.parallel.count
        assert isinstance(sizes, DeltaNetSizes)
        self._into, self._gate, self._scalars = map(builder.linear, (spec.into, spec.gate, spec.scalars))
        self._net, self._out = builder.delta_net(spec.net), builder.linear(spec.out)
        key_heads, shared_by = count(sizes.num_key_heads), sizes.num_heads // sizes.num_key_heads
        self._key, self._value = (key_heads, sizes.key_dim), (key_heads, shared_by, sizes.value_dim)
        keys = key_heads * sizes.key_dim
        self._kinds = keys, keys, key_heads * shared_by * sizes.value_dim

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        q, k, v = self._into(x).split_with_sizes(self._kinds, 1)
        q, k = q.unflatten(1, self._key), k.unflatten(1, self._key)
        v, gate = (values.unflatten(1, self._value) for values in (v, self._gate(x)))
        b, a = (values.unflatten(1, self._value[:2]) for values in self._scalars(x).chunk(2, 1))
        return self._out(self._net(q, k, v, gate, a, b, step))
