"""The layers of a model in NumPy, each made from its spec in the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .rail_weights import Array, Weights

if TYPE_CHECKING:
    from llmk import tree

ROWS = 256
"""Queries of one request whose scores are computed at a time."""
Layer = Callable[[Array, Any], Array]


@dataclass
class Chunk:
    """Tokens of one request in a step: rows ``start`` to ``stop - 1``, at positions from ``before`` on."""

    start: int
    stop: int
    before: int
    tables: Sequence[Sequence[int]]


@dataclass
class StepState:
    """What attention needs of a step: its chunks, and the position of each row."""

    chunks: Sequence[Chunk]
    positions: Any


class LinearLayer:
    """``x @ weight.T + bias``."""

    def __init__(self, spec: tree.Linear, weights: Weights) -> None:
        weight, self._bias = weights.linear(spec)
        self._weight = np.ascontiguousarray(weight.T)

    def __call__(self, x: Array) -> Array:
        y: Array = x @ self._weight
        return y if self._bias is None else y + self._bias


class RootNorm:
    """``x / rms(x) * (offset + weight)``."""

    def __init__(self, name: str, size: int, eps: float, offset: float, weights: Weights) -> None:
        self._weight = weights.tensor([f"{name}.weight"], (size,)) + np.float32(offset)
        self._eps = np.float32(eps)

    @classmethod
    def of(cls, spec: tree.Norm | None, weights: Weights) -> Callable[[Array], Array]:
        """A norm, or nothing where there is none."""
        return cls(spec.at, spec.size, spec.eps, spec.offset, weights) if spec else lambda x: x

    def __call__(self, x: Array) -> Array:
        mean = np.square(x).mean(-1, keepdims=True, dtype=np.float32)
        normed: Array = x / np.sqrt(mean + self._eps) * self._weight
        return normed


class GatedLayer:
    """``down(activation(gate(x)) * up(x))``."""

    def __init__(self, spec: tree.GatedMLP, weights: Weights) -> None:
        self._gate_up, self._down = LinearLayer(spec.gate_up, weights), LinearLayer(spec.down, weights)
        self._activation = {"silu": _silu, "gelu_tanh": _gelu_tanh}[spec.activation]

    def __call__(self, x: Array, step: StepState) -> Array:
        gate, up = np.split(self._gate_up(x), 2, axis=-1)
        return self._down(self._activation(gate) * up)


class AttentionLayer:
    """Projections, and attention over the blocks that a request has in the layer's cache."""

    def __init__(self, spec: tree.SelfAttention, weights: Weights, table: Callable[[tree.Rope], Array]) -> None:
        facts = spec.attend
        self._heads, self._kv_heads, self._dim = facts.heads, facts.kv_heads, facts.head_dim
        self._scale = np.float32(facts.head_dim**-0.5 if facts.scale is None else facts.scale)
        self._softcap, self._window = facts.softcap, facts.window
        self._cos_sin = table(facts.rope) if facts.rope else None
        self._qkv, self._out = LinearLayer(spec.qkv, weights), LinearLayer(spec.out, weights)
        self._norms: list[Callable[[Array], Array]] = [lambda x: x] * 2
        if facts.qk_norm is not None:
            names = [f"{facts.at}.{name}" for name in facts.norm_names]
            self._norms = [RootNorm(name, self._dim, facts.qk_norm, facts.norm_offset, weights) for name in names]
        self._cache: Any = None
        self._group = 0

    def page_shape(self, block_size: int) -> tuple[int, ...]:
        """Keys and values of a block."""
        return 2, block_size, self._kv_heads, self._dim

    def use(self, cache: Any, group: int) -> None:
        """The layer's cache, ``[blocks, *page_shape]``, and which of a request's block tables is for it."""
        self._cache, self._group = cache, group

    def __call__(self, x: Array, step: StepState) -> Array:
        heads = self._qkv(x).reshape(len(x), -1, self._dim)
        query, key, value = np.split(heads, [self._heads, self._heads + self._kv_heads], axis=1)
        query, key = self._norms[0](query), self._norms[1](key)
        if self._cos_sin is not None:
            angles = self._cos_sin[step.positions]
            query, key = _rotate(query, angles), _rotate(key, angles)
        result = np.empty((len(x), self._heads * self._dim), np.float32)
        for chunk in step.chunks:
            rows = slice(chunk.start, chunk.stop)
            self._write(chunk, key[rows], value[rows])
            for start in range(chunk.start, chunk.stop, ROWS):
                stop = min(start + ROWS, chunk.stop)
                first = chunk.before + start - chunk.start
                result[start:stop] = self._attend(query[start:stop], chunk.tables[self._group], first)
        return self._out(result)

    def _write(self, chunk: Chunk, key: Array, value: Array) -> None:
        size = self._cache.shape[2]
        positions = np.arange(chunk.before, chunk.before + len(key))
        blocks = np.array(chunk.tables[self._group])[positions // size]
        self._cache[blocks, 0, positions % size] = key
        self._cache[blocks, 1, positions % size] = value

    def _attend(self, query: Array, table: Sequence[int], first: int) -> Array:
        """Of consecutive queries, the first of which is at position ``first``. No block is read that only earlier
        tokens than those of the window have."""
        size, count = self._cache.shape[2], len(query)
        oldest = max(0, first - self._window + 1) // size if self._window else 0
        blocks = np.array(table[oldest : -(-(first + count) // size)])
        kept = self._cache[blocks].astype(np.float32, copy=False).transpose(1, 3, 0, 2, 4)
        keys, values = kept.reshape(2, self._kv_heads, -1, self._dim)
        grouped = query.reshape(count, self._kv_heads, -1, self._dim).transpose(1, 2, 0, 3)
        scores = grouped @ keys[:, None].swapaxes(-1, -2) * self._scale
        if self._softcap is not None:
            scores = np.tanh(scores / np.float32(self._softcap)) * np.float32(self._softcap)
        distance = (first + np.arange(count))[:, None] - (oldest * size + np.arange(keys.shape[1]))
        hidden = (distance < 0) | (distance >= self._window if self._window else False)
        scores = np.where(hidden, np.float32(-np.inf), scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        # What blocks hold behind the last token is of nobody, and may be no number.
        values = np.where(hidden.all(0)[:, None], np.float32(0), values)
        result: Array = shares @ values[:, None]
        return result.transpose(2, 0, 1, 3).reshape(count, -1)


def residual(spec: tree.Residual, block: Layer, weights: Weights) -> Layer:
    """``x + scale * post(block(norm(x)))``."""
    norm, post, scale = RootNorm.of(spec.norm, weights), RootNorm.of(spec.post, weights), np.float32(spec.scale)
    return lambda x, step: x + scale * post(block(norm(x), step))


def _rotate(x: Array, angles: Array) -> Array:
    """Rotates the first elements of each head, one of the first half with one of the second. ``angles``: a row of
    cosines, then sines, for each of ``x``."""
    pairs = angles.shape[1] // 2
    cos, sin = angles[:, None, :pairs], angles[:, None, pairs:]
    first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, x[..., 2 * pairs :]), axis=-1)


def _silu(x: Array) -> Array:
    result: Array = x * (np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5))
    return result


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)
    result: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result
