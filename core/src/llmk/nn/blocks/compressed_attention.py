"""Attention to the last tokens, and to entries that each stand for a group of earlier ones, with its projections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn.context import StepContext
from llmk.nn.latent import absorbed
from llmk.nn.layer import Layer, Parameter
from llmk.nn.linear import Linear

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.build import Build
    from llmk.nn.builder import Builder


class GroupedOut(Linear):
    """A projection of each group of heads by itself. It is never run as a linear layer: its weight is split.

    Attributes:
        groups: ``[out_groups, heads * head_dim / out_groups, out_rank]``.
    """

    groups: Tensor

    def __init__(self, build: Build, spec: tree.Linear, count: int, site: str) -> None:
        self._kernel, self._count = build.linear(site, module=spec.at, own_switch=True), count
        super().__init__(build, spec.at, spec.size, (spec.rows,), site=site)

    def finish(self) -> None:
        super().finish()
        columns = absorbed(self._kernel, self.weight, self.in_features, self._build)
        self.groups = columns.unflatten(1, (self._count, -1)).transpose(0, 1).contiguous()
        self.weight = None


class Compressor(Layer):
    """What entries are made with, as the ops take it."""

    def __init__(self, builder: Builder, spec: tree.Compressor) -> None:
        self._rows = builder.linear(spec.rows)
        self._norm: Any = builder.norm(spec.norm)
        self._eps, shape = spec.norm.eps, ([spec.rate], [spec.width])
        bias = Parameter(builder.build, [f"{spec.at}.ape"], *shape, dtype=torch.float32)
        super().__init__(builder.build, [bias])

    def finish(self) -> None:
        self._bias = self.parameters[0].take()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """For hidden states ``[tokens, hidden]``: rows, bias, weight and epsilon of the norm."""
        return self._rows(x), self._bias, self._norm.weight, self._eps


class EntryIndexer:
    """Picks the entries that each token attends to."""

    def __init__(self, builder: Builder, spec: tree.EntryIndexer, attend: tree.CompressedAttend) -> None:
        shape, (*_, pick, rope) = attend.shape, builder.ops(attend)
        self._q, self._weights = builder.linear(spec.q), builder.linear(spec.weights)
        self._compressor, self._cos_sin = Compressor(builder, spec.compressor), builder.cos_sin(attend.rope)
        self._heads = (shape.index_heads, shape.index_dim)
        self._factor = (shape.index_heads * shape.index_dim) ** -0.5
        self._rotate = Trailing(builder, rope, attend.rope)
        self._pick = partial(builder.build.kernel("op", pick), top_k=shape.index_top_k)

    def __call__(self, x: Tensor, compressed: Tensor, caches: Any, meta: Any, step: StepContext) -> Tensor:
        """int32 ``[tokens, index_top_k]``, for hidden states and compressed queries."""
        q = self._rotate(self._q(compressed).unflatten(1, self._heads), step.positions)
        # The weights take the factor of all scores, which is positive, so that ReLU may come first.
        weights = self._weights(x) * self._factor
        found: Tensor = self._pick(q, weights, *self._compressor(x), self._cos_sin, caches, meta)
        return found


class Trailing:
    """Rotates the last elements of heads, by the op ``rotate``."""

    def __init__(self, builder: Builder, rotate: str, rope: tree.Rope) -> None:
        self._rotate = builder.build.kernel("op", rotate)
        self._cos_sin, self._back = builder.cos_sin(rope), builder.cos_sin(rope, back=True)

    def __call__(self, x: Tensor, positions: Tensor, *, back: bool = False) -> Tensor:
        """Maps ``[tokens, heads, head_dim]``; ``back``: against the angles."""
        table = self._back if back else self._cos_sin
        plain, turned = x.split_with_sizes([x.shape[2] - table.shape[1], table.shape[1]], dim=2)
        turned, _ = self._rotate(turned, turned[:, :1], positions, table)
        return torch.cat((plain, turned), dim=2)


class CompressedAttention(Layer):
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.CompressedAttention, *, fused: bool) -> None:
        attend, shape, build = spec.attend, spec.attend.shape, builder.build
        run, rope, per_head, *_ = builder.ops(attend)
        self._sizes, self._heads = (shape.q_rank, shape.head_dim), (shape.num_heads, shape.head_dim)
        self._down, self._q_norm, self._q = builder.linear(spec.down), builder.norm(spec.q_norm), builder.linear(spec.q)
        self._head_norm, self._key_norm = builder.norm(spec.head_norm), builder.norm(spec.key_norm)
        self._compressor = Compressor(builder, spec.compressor) if spec.compressor else None
        self._indexer = EntryIndexer(builder, spec.indexer, attend) if spec.indexer else None
        self._attend = partial(build.kernel("op", run), window=shape.window, scale=shape.head_dim**-0.5)
        self._cos_sin, self._eps = builder.cos_sin(attend.rope), shape.eps
        self._rotate, self._per_head = Trailing(builder, rope, attend.rope), build.kernel("op", per_head)
        self._index, self._count = builder.rows_cache(attend), shape.out_groups
        self._groups = GroupedOut(build, spec.out_groups, shape.out_groups, builder.site(spec.out_groups))
        self._out = builder.linear(spec.out)
        own = Parameter(build, [f"{attend.at}.attn_sink"], [shape.num_heads], dtype=torch.float32)
        super().__init__(build, [own])

    def finish(self) -> None:
        self._sinks = self.parameters[0].take()

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        caches, meta = step.caches[self._index], step.meta[self._index]
        compressed, key = self._down(x).split_with_sizes(self._sizes, 1)
        compressed = self._q_norm(compressed)
        q = self._rotate(self._head_norm(self._q(compressed).unflatten(1, self._heads)), step.positions)
        key = self._rotate(self._key_norm(key).unsqueeze(1), step.positions).squeeze(1)
        given: Any = self._compressor(x) if self._compressor else (None, None, None, self._eps)
        selected = self._indexer(x, compressed, caches[3:], meta, step) if self._indexer else None
        out = self._attend(q, key, *given, self._cos_sin, selected, self._sinks, caches[:3], meta)
        # Keys are values too, so what they add is rotated by their positions.
        heads = self._rotate(out, step.positions, back=True).reshape(len(x), self._count, -1)
        return self._out(self._per_head(heads, self._groups.groups).flatten(1))
