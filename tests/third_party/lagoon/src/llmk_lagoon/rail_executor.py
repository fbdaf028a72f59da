"""Runs whole models in NumPy, step by step: for machines whose torch has no kernels, and for reading along, since every
layer is a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmk.api import EngineDead, ExecutorContext, FullAttentionCache, Host, StepTokens
from llmk.api.engine.executors import LayerGroup, Step, StepWork
from llmk.reference.rope.rotation import cos_sin_cache

from .rail_draw import Sampling, draw
from .rail_layers import ROWS, AttentionLayer, Chunk, GatedLayer, Layer, RootNorm, StepState, residual
from .rail_machine import memory_available
from .rail_weights import Array, Weights

if TYPE_CHECKING:
    from llmk import tree

SHARE = 0.5
"""Of the memory that is available, for the cache."""


@dataclass
class _Request:
    """What is known of the request in a slot."""

    tokens: list[int]
    tables: list[list[int]]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class _Done:
    """Follows ``llmk.api.PendingTokens``, of a step that was run when it was submitted."""

    tokens: StepTokens

    def is_done(self) -> bool:
        return True

    def result(self) -> StepTokens:
        return self.tokens


class ArrayExecutor:
    """Follows ``llmk.api.ModelExecutor``."""

    asynchronous = ""
    """``submit`` runs steps."""

    def __init__(self, context: ExecutorContext) -> None:
        model: Any = context.query.tree
        weights = Weights(context.checkpoint)
        self._context, self._model = context, model
        self._tables: dict[tree.Rope, Array] = {}
        self._attention: list[AttentionLayer] = []
        names = [f"{name}.weight" for name in (model.embed.at, *model.embed.aliases)]
        self._embedding = weights.tensor(names, (model.embed.vocab_size, model.embed.size))
        self._layers = [self._residual(spec, weights) for layer in model.layers for spec in layer]
        self._norm = RootNorm.of(model.norm, weights)
        shape = model.head.vocab_size, model.head.size
        head = self._embedding if model.head.tied else weights.tensor([f"{model.head.at}.weight"], shape)
        self._head = np.ascontiguousarray(head.T)
        self._head_bias = weights.tensor([f"{model.head.at}.bias"], shape[:1]) if model.head.bias else None
        self._dtype = np.dtype(context.query.cache_dtype)
        self._requests: dict[int, _Request] = {}
        self._is_closed = False
        self.cache_specs = [
            FullAttentionCache(context.block_size, self._dtype.itemsize * int(np.prod(shape)))
            for shape in (layer.page_shape(context.block_size) for layer in self._attention)
        ]

    def available(self) -> int:
        """A share of what the machine has left, less the largest arrays of a step."""
        context, model = self._context, self._model
        facts = [spec.block.attend for layer in model.layers for spec in layer if hasattr(spec.block, "attend")]
        scores: int = 3 * ROWS * context.max_model_len * max(fact.heads for fact in facts)
        rows: int = (
            context.max_num_batched_tokens * 16 * model.embed.size + context.max_num_seqs * model.head.vocab_size
        )
        return max(0, int(memory_available(Host()) * SHARE) - 4 * (scores + rows))

    def allocate(self, num_blocks: int, groups: Sequence[LayerGroup]) -> None:
        """An array for each layer; memory is taken when a block is first written."""
        for number, group in enumerate(groups):
            for index in group.layers:
                layer = self._attention[index]
                layer.use(np.zeros((num_blocks, *layer.page_shape(group.block_size)), self._dtype), number)

    def submit(self, step: Step) -> _Done:
        """Runs a step; all rows together, but for attention."""
        if self._is_closed:
            raise EngineDead("the executor was closed")
        for slot in step.freed:
            self._requests.pop(slot, None)
        for new in step.new:
            tables = [list(table) for table in new.block_ids]
            self._requests[new.slot] = _Request(list(new.token_ids), tables, Sampling.of(new.params), new.seed)
        if not step.work:
            return _Done(StepTokens(()))
        return _Done(self._sample(step.work, self._run(step.work)))

    def close(self) -> None:
        """Drops the requests. Nothing else was started."""
        self._is_closed = True
        self._requests.clear()

    def _residual(self, spec: tree.Residual, weights: Weights) -> Layer:
        block: Any = spec.block
        if hasattr(block, "attend"):
            self._attention.append(AttentionLayer(block, weights, self._table))
            return residual(spec, self._attention[-1], weights)
        return residual(spec, GatedLayer(block, weights), weights)

    def _table(self, rope: tree.Rope) -> Array:
        """Cosines and sines of all positions that are served; one table for all layers with these settings."""
        if rope not in self._tables:
            length = self._context.max_model_len
            table = cos_sin_cache(rope.parameters, rope.dim, length, 10000.0, trained_positions=rope.positions)
            self._tables[rope] = table.numpy()
        return self._tables[rope]

    def _run(self, work: Sequence[StepWork]) -> Array:
        """The final hidden states of the last token of each item."""
        chunks: list[Chunk] = []
        tokens: list[int] = []
        for item in work:
            request = self._requests[item.slot]
            for table, blocks in zip(request.tables, item.new_blocks, strict=False):
                table.extend(blocks)
            chunks.append(Chunk(len(tokens), len(tokens) + item.num_tokens, item.before, request.tables))
            tokens += request.tokens[item.before : item.before + item.num_tokens]
        positions = np.concatenate([np.arange(c.before, c.before + c.stop - c.start) for c in chunks])
        state = StepState(chunks, positions)
        x = self._embedding[tokens]
        if self._model.embed.scale is not None:
            x = x * np.float32(self._model.embed.scale)
        for layer in self._layers:
            x = layer(x, state)
        return self._norm(x[[chunk.stop - 1 for chunk in chunks]])

    def _logits(self, x: Array) -> Array:
        head = self._model.head
        logits = x @ self._head
        if self._head_bias is not None:
            logits = logits + self._head_bias
        if head.scale != 1:
            logits = logits * np.float32(head.scale)
        if head.softcap is not None:
            logits = np.tanh(logits / np.float32(head.softcap)) * np.float32(head.softcap)
        return logits

    def _sample(self, work: Sequence[StepWork], x: Array) -> StepTokens:
        """The next token of each item that is to be sampled; it becomes known at once."""
        sampled = [number for number, item in enumerate(work) if item.sample]
        ids: list[int] = []
        broken: list[int] = []
        for item, row in zip([work[number] for number in sampled], self._logits(x[sampled]), strict=True):
            request, position = self._requests[item.slot], item.before + item.num_tokens
            if np.isfinite(row).all():
                token = draw(row, request.sampling, request.seed, position)
            else:
                token = 0
                broken.append(len(ids))
            request.tokens[position:] = [token]
            ids.append(token)
        return StepTokens(tuple(ids), tuple(broken))
