"""Latent attention to the tokens that an indexer picks, with its projections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.api import PluginError
from llmk.nn.context import StepContext
from llmk.nn.latent import LatentUp
from llmk.nn.layer import Layer, Parameter

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class Indexer:
    """Picks the tokens that each token attends to.

    Attributes:
        selected: int32 ``[tokens, index_topk]``, what it picked last: in this step, for the layers after it.
        here: as :attr:`llmk.nn.layer.Layer.here`.
    """

    selected: Tensor

    def __init__(self, builder: Builder, spec: tree.Indexer, attend: tree.SelectedAttend) -> None:
        build, index, (_, pick, rope) = builder.build, attend.index, builder.ops(attend)
        self.here = build.here
        self._q, self._k, self._weights = map(builder.linear, (spec.q, spec.k, spec.weights))
        self._norm, self._cos_sin = builder.norm(spec.k_norm), builder.cos_sin(attend.rope)
        self._heads = (index.index_n_heads, index.index_head_dim)
        self._factor = (index.index_n_heads * index.index_head_dim) ** -0.5
        turn = {"neighbours": True} if index.neighbours else {}
        self._rotate = partial(build.kernel("op", rope), **turn)
        self._pick = partial(build.kernel("op", pick), top_k=index.index_topk)

    def __call__(self, x: Tensor, compressed: Tensor, cache: Tensor, meta: Any, step: StepContext) -> None:
        """Sets :attr:`selected` for hidden states ``[tokens, hidden]`` and compressed queries."""
        q, k = self._q(compressed).unflatten(1, self._heads), self._norm(self._k(x)).unsqueeze(1)
        q, k = self._rotate(q, k, step.positions, self._cos_sin)
        # The weights take the factor of all scores, which is positive, so that ReLU may come first.
        self.selected = self._pick(q, k.squeeze(1), self._weights(x) * self._factor, cache, meta)


class SelectedAttention(Layer):
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.SelectedAttention, *, fused: bool) -> None:
        attend, shape, build = spec.attend, spec.attend.shape, builder.build
        self._sizes = (shape.q_lora_rank or 0, shape.row_size)
        self._heads = (-1, shape.qk_head_dim)
        self._down, self._q_norm, self._q = builder.linear(spec.down), builder.norm(spec.q_norm), builder.linear(spec.q)
        self._picks = spec.indexer is not None
        if spec.indexer is not None:
            builder.indexer = Indexer(builder, spec.indexer, attend)
        self._indexer = _of_this_stage(builder, attend.at)
        self._attend = partial(build.kernel("op", builder.ops(attend)[0]), scale=shape.scale)
        self._cos_sin, self._eps = builder.cos_sin(attend.rope), attend.eps
        self._index = builder.rows_cache(attend)
        self._up = LatentUp(build, spec.up.at, shape, site=builder.site(spec.up))
        self._out = builder.linear(spec.out)
        self._norm = Parameter(build, [f"{attend.at}.kv_a_layernorm.weight"], [shape.kv_lora_rank], dummy_std=None)
        super().__init__(build, [self._norm])

    def finish(self) -> None:
        self._norm_weight = self._norm.take()

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        caches, meta = step.caches[self._index], step.meta[self._index]
        compressed, latent = self._down(x).split_with_sizes(self._sizes, 1)
        compressed = self._q_norm(compressed)
        if self._picks:
            self._indexer(x, compressed, caches[1], meta, step)
        projected, selected = self._q(compressed).unflatten(1, self._heads), self._indexer.selected
        given = projected, latent, self._norm_weight, self._eps, self._up.key, self._up.value
        out: Tensor = self._attend(*given, step.positions, self._cos_sin, selected, caches[0], meta)
        return self._out(out.flatten(1))


def _of_this_stage(builder: Builder, at: str) -> Indexer:
    """The last indexer. Raises PluginError where there is none, or where it is in another pipeline stage."""
    found = builder.indexer
    if found is None or (builder.build.here and not found.here):
        raise PluginError(
            f"attention at {at!r} takes the tokens that an earlier layer's indexer picks, and this pipeline stage has"
            " no such layer",
            hint="spread the model by tensor parallelism (parallel.tensor), not in stages",
        )
    return found
