"""Latent attention to the tokens that an indexer picks, with its projections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.context import StepContext
from llmk.nn.latent import LatentUp
from llmk.nn.layer import Layer, Parameter

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class SelectedAttention(Layer):
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.SelectedAttention, *, fused: bool) -> None:
        attend, shape, index = spec.attend, spec.attend.shape, spec.attend.index
        build, (op, pick, rope) = builder.build, builder.ops(attend)
        self._sizes = (shape.q_lora_rank or 0, shape.row_size)
        self._heads = (-1, shape.qk_head_dim)
        self._down, self._q_norm, self._q = builder.linear(spec.down), builder.norm(spec.q_norm), builder.linear(spec.q)
        self._index_q, self._index_k = builder.linear(spec.index_q), builder.linear(spec.index_k)
        self._index_norm, self._index_weights = builder.norm(spec.index_norm), builder.linear(spec.index_weights)
        self._index_heads = (index.index_n_heads, index.index_head_dim)
        self._factor = (index.index_n_heads * index.index_head_dim) ** -0.5
        turn = {"neighbours": True} if index.neighbours else {}
        self._rotate = partial(build.kernel("op", rope), **turn)
        self._pick = partial(build.kernel("op", pick), top_k=index.index_topk)
        self._attend = partial(build.kernel("op", op), scale=shape.scale)
        self._cos_sin, self._eps = builder.cos_sin(attend.rope), attend.eps
        self._index = builder.rows_cache(attend)
        self._up = LatentUp(build, spec.up.at, shape, site=builder.site(spec.up))
        self._out = builder.linear(spec.out)
        self._norm = Parameter(build, [f"{attend.at}.kv_a_layernorm.weight"], [shape.kv_lora_rank], dummy_std=None)
        super().__init__(build, [self._norm])

    def finish(self) -> None:
        self._norm_weight = self._norm.take()

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        (latents, keys), meta = step.caches[self._index], step.meta[self._index]
        compressed, latent = self._down(x).split_with_sizes(self._sizes, 1)
        compressed = self._q_norm(compressed)
        q, k = self._index_q(compressed).unflatten(1, self._index_heads), self._index_norm(self._index_k(x))
        q, k = self._rotate(q, k.unsqueeze(1), step.positions, self._cos_sin)
        # The weights take the factor of all scores, which is positive, so that ReLU may come first.
        selected = self._pick(q, k.squeeze(1), self._index_weights(x) * self._factor, keys, meta)
        projected = self._q(compressed).unflatten(1, self._heads)
        given = projected, latent, self._norm_weight, self._eps, self._up.key, self._up.value
        out: Tensor = self._attend(*given, step.positions, self._cos_sin, selected, latents, meta)
        return self._out(out.flatten(1))
