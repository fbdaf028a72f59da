"""Runs dense decoders by NumPy alone, request after request: slowly, with little between a reader and the mathematics,
on machines without a torch that is fast, and as an answer that does not share a kernel with any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmk.api import (
    CacheSpec,
    EngineDead,
    ExecutorContext,
    FullAttentionCache,
    LayerGroup,
    Step,
    StepSampling,
    StepTokens,
    StepWork,
)
from llmk.reference.rope.rotation import cos_sin_cache
from llmk.tree import SelfAttention

from .swift_numpy_sampling import draw
from .swift_numpy_weights import Array, Weights

Function = Callable[[Array], Array]


@dataclass(slots=True)
class _Request:
    """A request in the batch: its known tokens, and its blocks by cache group."""

    tokens: list[int]
    blocks: list[list[int]]
    params: StepSampling
    seed: int


@dataclass(frozen=True, slots=True)
class _Done:
    """Follows ``llmk.api.PendingTokens``."""

    tokens: StepTokens

    def is_done(self) -> bool:
        """Steps are run where they are submitted."""
        return True

    def result(self) -> StepTokens:
        """The tokens."""
        return self.tokens


class NumpyExecutor:
    """Follows ``llmk.api.ModelExecutor``."""

    asynchronous = ""

    def __init__(self, context: ExecutorContext) -> None:
        tree = context.query.tree
        self._context, self._tree = context, tree
        weights = Weights(context.checkpoint)
        embed, head = tree.embed, tree.head
        self._table = weights.read((f"{embed.at}.weight", *embed.aliases), (embed.vocab_size, embed.size))
        self._norm = _norm(tree.norm, weights)
        self._layers = [[_Part(part, weights, context) for part in layer] for layer in tree.layers]
        self._attentions = [part.attention for layer in self._layers for part in layer if part.attention is not None]
        self._head = self._table if head.tied else weights.read((f"{head.at}.weight",), (head.vocab_size, head.size))
        self._head_bias = weights.read((f"{head.at}.bias",), (head.vocab_size,)) if head.bias else np.float32(0)
        dtype = np.dtype(context.query.cache_dtype)
        self.cache_specs: Sequence[CacheSpec] = [
            FullAttentionCache(context.block_size, 2 * context.block_size * attention.width * dtype.itemsize)
            for attention in self._attentions
        ]
        self._requests: dict[int, _Request] = {}
        self._is_closed = False

    def available(self) -> int:
        """Free memory, less what the largest step takes: logits, scores of the longest request, and activations."""
        context, tree = self._context, self._tree
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        heads = max(attention.spec.heads for attention in self._attentions)
        row = 16 * tree.embed.size + 4 * tree.embed.vocab_size // context.max_num_batched_tokens
        step = 4 * context.max_num_batched_tokens * (row + 3 * heads * context.max_model_len)
        return max(free - step, 0)

    def allocate(self, num_blocks: int, groups: Sequence[LayerGroup]) -> None:
        """One array for each layer's keys and values."""
        for number, group in enumerate(groups):
            for layer in group.layers:
                self._attentions[layer].allocate(num_blocks, group.block_size, number)

    def submit(self, step: Step) -> _Done:
        """Runs the step."""
        if self._is_closed:
            raise EngineDead("the executor was closed")
        for slot in step.freed:
            self._requests.pop(slot, None)
        for new in step.new:
            blocks = [list(blocks) for blocks in new.block_ids]
            self._requests[new.slot] = _Request(list(new.token_ids), blocks, new.params, new.seed)
        tokens: list[int] = []
        broken: list[int] = []
        for work in step.work:
            request = self._requests[work.slot]
            with np.errstate(all="ignore"):  # what is infinite or no number is reported below
                logits = self._logits(request, work)
            if logits is None:
                continue
            number = work.before + work.num_tokens
            is_broken = not np.isfinite(logits).all()
            token = 0 if is_broken else draw(logits, request.params, request.seed, number)
            if is_broken:
                broken.append(len(tokens))
            request.tokens[number:] = [token]
            tokens.append(token)
        return _Done(StepTokens(tokens, broken))

    def close(self) -> None:
        """Nothing was started; the arrays go with the executor."""
        self._is_closed = True

    def _logits(self, request: _Request, work: StepWork) -> Array | None:
        """Computes the tokens of ``work``; the logits of the last one, if the next is to be sampled."""
        for blocks, more in zip(request.blocks, work.new_blocks, strict=False):
            blocks.extend(more)
        x = self._table[request.tokens[work.before : work.before + work.num_tokens]]
        if self._tree.embed.scale is not None:
            x = x * np.float32(self._tree.embed.scale)
        for layer in self._layers:
            for part in layer:
                x = part(x, work.before, request.blocks)
        if not work.sample:
            return None
        logits = (self._norm(x[-1:])[0] @ self._head.T + self._head_bias) * np.float32(self._tree.head.scale)
        return _capped(logits, self._tree.head.softcap)


class _Part:
    """A block of the residual stream, with its norms."""

    def __init__(self, spec: Any, weights: Weights, context: ExecutorContext) -> None:
        self._scale = np.float32(spec.scale)
        self._norm = _norm(spec.norm, weights)
        self._post = _norm(spec.post, weights)
        is_attention = isinstance(spec.block, SelfAttention)
        self.attention = _Attention(spec.block, weights, context) if is_attention else None
        self._mlp = _same if is_attention else _mlp(spec.block, weights)

    def __call__(self, x: Array, before: int, blocks: Sequence[Sequence[int]]) -> Array:
        """``x`` are the rows of tokens ``before`` and following."""
        normed = self._norm(x)
        block = self._mlp(normed) if self.attention is None else self.attention(normed, before, blocks)
        return x + self._scale * self._post(block)


class _Attention:
    """Attention over the blocks of one request."""

    def __init__(self, spec: Any, weights: Weights, context: ExecutorContext) -> None:
        attend = self.spec = spec.attend
        self._clip, self._out_scale = spec.clip, np.float32(spec.out_scale)
        self._qkv, self._out = _linear(spec.qkv, weights), _linear(spec.out, weights)
        self._scale = np.float32(attend.head_dim**-0.5 if attend.scale is None else attend.scale)
        self._norms = [_head_norm(attend, name, weights) for name in attend.norm_names]
        self.width = attend.kv_heads * attend.head_dim
        self._dtype = np.dtype(context.query.cache_dtype)
        self._group = self._block_size = 0
        self._cache: np.ndarray = np.empty(0)
        if attend.rope is not None:
            rope = attend.rope
            table = cos_sin_cache(
                rope.parameters, rope.dim, context.max_model_len, 10000.0, trained_positions=rope.positions
            )
            self._cos, self._sin = np.split(table.numpy(), 2, axis=1)

    def allocate(self, num_blocks: int, block_size: int, group: int) -> None:
        """Keys and values of a block are next to each other."""
        self._group, self._block_size = group, block_size
        self._cache = np.zeros((num_blocks, 2, block_size, self.spec.kv_heads, self.spec.head_dim), self._dtype)

    def __call__(self, x: Array, before: int, blocks: Sequence[Sequence[int]]) -> Array:
        """Writes the keys and values of the rows, and reads those of all tokens so far."""
        heads, kv_heads, size = self.spec.heads, self.spec.kv_heads, self.spec.head_dim
        count, length = len(x), before + len(x)
        projected = self._qkv(x)
        if self._clip is not None:
            projected = projected.clip(-self._clip, self._clip)
        queries, keys, values = np.split(projected, [heads * size, (heads + kv_heads) * size], axis=1)
        queries = self._rotated(self._norms[0](queries.reshape(count, heads, size)), before)
        keys = self._rotated(self._norms[1](keys.reshape(count, kv_heads, size)), before)
        places = np.arange(length)
        block = np.asarray(blocks[self._group])[places // self._block_size]
        offset = places % self._block_size
        self._cache[block[before:], 0, offset[before:]] = keys
        self._cache[block[before:], 1, offset[before:]] = values.reshape(count, kv_heads, size)
        keys, values = (self._cache[block, which, offset].astype(np.float32) for which in (0, 1))
        grouped = queries.reshape(count, kv_heads, heads // kv_heads, size)
        scores = _capped(np.einsum("qkgd,lkd->kgql", grouped, keys) * self._scale, self.spec.softcap)
        distance = places[before:, None] - places
        is_seen = distance >= 0
        if self.spec.window is not None:
            is_seen &= distance < self.spec.window
        scores = np.where(is_seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("kgql,lkd->qkgd", weights, values).reshape(count, heads * size)
        return self._out(mixed * self._out_scale)

    def _rotated(self, x: Array, before: int) -> Array:
        """Element ``i`` of the first half of what is rotated is paired with that of the second."""
        if self.spec.rope is None:
            return x
        cos, sin = (table[before : before + len(x), None, :] for table in (self._cos, self._sin))
        half = cos.shape[-1]
        first, second, rest = np.split(x, [half, 2 * half], axis=-1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)


def _same(x: Array) -> Array:
    return x


def _linear(spec: Any, weights: Weights) -> Function:
    weight = weights.linear(spec, "weight").T
    bias = weights.linear(spec, "bias") if spec.bias else np.float32(0)
    return lambda x: x @ weight + bias


def _norm(spec: Any, weights: Weights) -> Function:
    if spec is None:
        return _same
    factor: Any = np.float32(1)
    if spec.weighted:
        factor = np.float32(spec.offset) + weights.read((f"{spec.at}.weight",), (spec.size,))
    bias = weights.read((f"{spec.at}.bias",), (spec.size,)) if spec.bias else np.float32(0)

    def norm(x: Array) -> Array:
        centered = x - x.mean(axis=-1, keepdims=True) if spec.centered else x
        return _scaled(centered, spec.eps) * factor + bias

    return norm


def _head_norm(attend: Any, name: str, weights: Weights) -> Function:
    if attend.qk_norm is None:
        return _same
    factor: Any = np.float32(1)
    if attend.norm_weighted:
        factor = np.float32(attend.norm_offset) + weights.read((f"{attend.at}.{name}.weight",), (attend.head_dim,))
    return lambda x: _scaled(x, attend.qk_norm) * factor


def _scaled(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps))


def _mlp(spec: Any, weights: Weights) -> Function:
    gate_up, down = _linear(spec.gate_up, weights), _linear(spec.down, weights)
    activation = _silu if spec.activation == "silu" else _gelu_tanh

    def mlp(x: Array) -> Array:
        gate, up = np.split(gate_up(x), 2, axis=-1)
        return down(activation(gate) * up)

    return mlp


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3)))


def _capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))
