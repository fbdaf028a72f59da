"""An estimate of what a step costs a device: floating-point operations, and bytes read from and written to its memory.

Counted are matrix multiplications (two operations for each element of the weight and row), attention by the keys that
each query sees, weights once a step (of experts as many as the tokens can reach), what matrix multiplications read and
write of their activations, and K/V and recurrent state as they are read and written. Norms, activations and the like
are left out: they add little, and kernels fuse them in different ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from llmk.api import ModelFacts
from llmk.api.cache import DTYPE_BYTES
from llmk.api.query import cached_bytes, expanded_size
from llmk.engine.wire.step import StepPlan

HEAD_SITE = "lm_head"
"""The matrix multiplication that is computed for sampled tokens alone."""


@dataclass(slots=True)
class Cost:
    """Operations and bytes."""

    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0

    def add(self, other: Cost, times: int) -> None:
        """Adds ``other``, so many times."""
        self.flops += other.flops * times
        self.read_bytes += other.read_bytes * times
        self.written_bytes += other.written_bytes * times


@dataclass(slots=True)
class _Experts:
    """Experts of which each token takes ``top_k``; one in all blocks weighs ``num_bytes``."""

    number: int
    top_k: int
    num_bytes: int


@dataclass(slots=True)
class _Attention:
    """Layers that see the same keys: operations for each query and key, and bytes of a key and its value."""

    flops: int = 0
    num_bytes: int = 0


class CostModel:
    """What each of ``devices`` does of a model whose K/V have ``cache_dtype``. Weights have ``dtype``, or the
    ``weight_bits`` of their format."""

    def __init__(
        self,
        facts: ModelFacts,
        *,
        dtype: str,
        cache_dtype: str,
        weight_bits: Mapping[str, float] = MappingProxyType({}),
        devices: int = 1,
    ) -> None:
        self._share = 1 / devices
        self._token = Cost()
        self._sample = Cost()
        self._weight_bytes = self._head_bytes = self._state_bytes = 0
        self._experts: list[_Experts] = []
        self._attention: dict[int | None, _Attention] = {}
        self._bytes = {weight_format: bits / 8 for weight_format, bits in weight_bits.items()}
        self._count_linear(facts, DTYPE_BYTES[dtype])
        self._count_experts(facts, DTYPE_BYTES[dtype])
        self._count_caches(facts, cache_dtype)

    def step(self, plan: StepPlan, ends: Sequence[int]) -> Cost:
        """The cost of a step. ``ends`` are the lengths of its requests once it has run, in the order of its work."""
        tokens, samples = plan.num_tokens, sum([work.sample + work.num_drafts for work in plan.work])
        cost = Cost(read_bytes=self._weight_bytes + (self._head_bytes if samples else 0))
        cost.add(self._token, tokens)
        cost.add(self._sample, samples)
        for experts in self._experts:
            cost.read_bytes += experts.num_bytes * min(experts.number, tokens * experts.top_k)
        cost.read_bytes += self._state_bytes * len(ends)
        cost.written_bytes += self._state_bytes * len(ends)
        counts = None if tokens == len(ends) else [work.num_tokens for work in plan.work]
        for window, attention in self._attention.items():
            pairs, keys = _seen(ends, counts, window)
            cost.flops += attention.flops * pairs
            cost.read_bytes += attention.num_bytes * keys
        share = self._share
        return Cost(cost.flops * share, cost.read_bytes * share, cost.written_bytes * share)

    def prompt(self, start: int, count: int) -> float:
        """Operations for ``count`` tokens of a prompt behind ``start`` others."""
        flops = self._token.flops * count
        for window, attention in self._attention.items():
            flops += attention.flops * _seen([start + count], [count], window)[0]
        return flops * self._share

    def _count_linear(self, facts: ModelFacts, width: int) -> None:
        self._token = Cost(0, facts.hidden_size * width, facts.hidden_size * width)  # the embedding
        for linear in facts.linear:
            rows, columns, count = linear.out_features, linear.in_features, linear.count
            stored = self._bytes.get(linear.weight_format, width)
            weight = int(rows * (columns * stored + linear.bias * width) * count)
            one = Cost(2 * rows * columns * count, columns * count * width, rows * count * width)
            if linear.site == HEAD_SITE:
                self._head_bytes += weight
                self._sample.add(one, 1)
            else:
                self._weight_bytes += weight
                self._token.add(one, 1)
        if not facts.linear:
            self._weight_bytes = facts.num_parameters * width
            self._token.flops = 2.0 * facts.num_parameters

    def _count_experts(self, facts: ModelFacts, width: int) -> None:
        for moe in facts.moe:
            hidden, inner, expanded = moe.hidden_size, moe.intermediate_size, expanded_size(moe)
            stored = self._bytes.get(moe.weight_format, width)
            size = int(hidden * (expanded + inner) * stored + (expanded + hidden) * moe.bias * width)
            self._experts.append(_Experts(moe.num_experts, moe.top_k, size * moe.count))
            one = Cost(2 * hidden * (expanded + inner), (hidden + inner) * width, (expanded + hidden) * width)
            self._token.add(one, moe.top_k * moe.count)

    def _count_caches(self, facts: ModelFacts, cache_dtype: str) -> None:
        for site in facts.attention:
            value_dim = site.latent_dim or site.head_dim
            key_bytes = site.num_layers * cached_bytes(site, cache_dtype)
            layers = self._attention.setdefault(site.sliding_window, _Attention())
            layers.flops += 2 * site.num_layers * site.num_heads * (site.head_dim + value_dim)
            layers.num_bytes += key_bytes
            self._token.written_bytes += key_bytes
        for rows in facts.rows:
            self._token.written_bytes += rows.num_layers * sum(tensor.num_bytes for tensor in rows.tensors)
        for state in facts.recurrent:
            self._state_bytes += state.num_layers * sum(tensor.num_bytes for tensor in state.tensors)


def _seen(ends: Sequence[int], counts: Sequence[int] | None, window: int | None) -> tuple[int, int]:
    """Pairs of queries and the keys that they see, and keys that are read once for each request. ``counts`` are the
    requests' queries; ``None``: one each."""
    if counts is None:
        keys = sum(ends) if window is None else sum([min(end, window) for end in ends])
        return keys, keys
    pairs = keys = 0
    for end, count in zip(ends, counts, strict=True):
        whole = count if window is None else max(0, min(count, window - (end - count)))
        pairs += whole * (end - count) + whole * (whole + 1) // 2 + (count - whole) * (window or 0)
        keys += end if window is None else min(end, window + count - 1)
    return pairs, keys
