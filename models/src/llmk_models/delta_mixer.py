"""The gated delta rule with projections that are interleaved by key head: its inputs are views of what they return."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn import StepContext
from llmk.tree import DeltaNetSizes

if TYPE_CHECKING:
    from llmk.nn.builder import Builder
    from llmk_models.qwen3_next import DeltaMixer as Spec


class DeltaMixer:
    """Follows ``llmk.nn.blocks.block.Block``. The rule takes queries, keys and values separately."""

    def __init__(self, builder: Builder, spec: Spec) -> None:
        sizes, count = spec.net.sizes, builder.build.parallel.count
        assert isinstance(sizes, DeltaNetSizes)
        self._into, self._scalars = builder.linear(spec.into), builder.linear(spec.scalars)
        self._concurrent = builder.build.concurrent
        self._net, self._out = builder.delta_net(spec.net), builder.linear(spec.out)
        self._key_heads = count(sizes.num_key_heads)
        shared_by = sizes.num_heads // sizes.num_key_heads
        self._values = (shared_by, sizes.value_dim)
        self._kinds = (*[sizes.key_dim] * 2, *[shared_by * sizes.value_dim] * 2)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        parts, scalars = self._concurrent(partial(self._into, x), partial(self._scalars, x))
        q, k, v, gate = parts.unflatten(1, (self._key_heads, -1)).split_with_sizes(self._kinds, 2)
        b, a = scalars.unflatten(1, (self._key_heads, 2, -1)).unbind(2)
        v, gate = (values.unflatten(2, self._values) for values in (v, gate))
        return self._out(self._net(q, k, v, gate, a, b, step))
