"""Memory planning: weights, activations and cache. Every error says how much memory is needed for what, how much is
free, and which setting helps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llmk.api import (
    AttentionQuery,
    CacheSpec,
    FullAttentionCache,
    LatentCache,
    ModelFacts,
    NotEnoughMemory,
    Plan,
    PlatformFacts,
    Problem,
    RecurrentCache,
    RowsCache,
    SlidingWindowCache,
)
from llmk.api.cache import DTYPE_BYTES
from llmk.api.query import cached_bytes, expanded_size
from llmk.api.sharding import sharded
from llmk.planning.cache_groups import CacheGroup, block_bytes, cache_groups
from llmk.planning.choices.speculation import speculation_of

if TYPE_CHECKING:
    from llmk.config.schema import CacheSection, Config
    from llmk.planning.boot import Boot

ANY_LENGTH = (1 << 40) - 1
"""More tokens than any request has."""

_GIB = 1 << 30

_SAMPLING_BYTES = 48
"""Bytes per logit of a step: float32 logits, sorted copies with indices, and 64-bit sums of
``llmk.reference.sampling.sample``."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The size of the block pool, and ``why`` it has that size."""

    num_blocks: int
    block_bytes: int
    why: str
    groups: tuple[CacheGroup, ...] = ()
    shadow_bytes: int = 0
    """Bytes of ``block_bytes`` that caches of shadows need."""

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole pool, over all layers."""
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The estimated memory use of one device, before anything is loaded. ``cache`` is sized by the memory that the
    weights, the largest step and what is kept of drafts leave free; if that is not enough, ``problem`` says why."""

    total: int
    weights: int
    activations: int
    cache: CachePlan | None
    problem: str = ""

    @property
    def rest(self) -> int:
        """Memory left for libraries, graphs and other processes."""
        return self.total - self.weights - self.activations - (self.cache.total_bytes if self.cache else 0)

    @property
    def num_tokens(self) -> int:
        """The longest request that the cache could hold, in tokens, regardless of ``max_model_len``; at most
        :data:`ANY_LENGTH`, which only models without full attention reach."""
        return _longest(self.cache.groups, self.cache.num_blocks, ANY_LENGTH + 1) if self.cache else 0

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data for JSON."""
        return asdict(self) | {"rest": self.rest, "num_tokens": self.num_tokens}

    def __str__(self) -> str:
        parts = f"{gib(self.weights)} weights, about {gib(self.activations)} activations"
        if self.cache is None:
            return f"{gib(self.total)}: {parts}. Does not fit: {self.problem}"
        held = "requests of any length" if self.num_tokens == ANY_LENGTH else f"{self.num_tokens:,} tokens"
        cache = f"{gib(self.cache.total_bytes)} cache ({self.cache.num_blocks:,} blocks, {held}"
        shadows = self.cache.num_blocks * self.cache.shadow_bytes
        cache += f"; {gib(shadows)} of it for shadows)" if shadows else ")"
        return f"{gib(self.total)}: {parts}, {cache}, {gib(self.rest)} for the rest"


def forecast(boot: Boot) -> MemoryPlan | None:
    """The memory plan of each device; ``None`` if the device's memory is unknown."""
    plan, limits = boot.plan, boot.settings.config.scheduler
    total, sharing = plan.platform.memory_bytes, len(plan.ranks_on_same_device(0))
    if not total:
        return None
    facts, share = sharded(boot.facts, plan.tensor), sharing / plan.num_ranks
    weights = int(share * weight_bytes(boot.facts, plan.dtype, plan.weight_bits))
    activations = activation_bytes(facts, limits.max_num_batched_tokens, limits.max_num_seqs) * sharing
    specs, groups, size, shadow_bytes = _pool(boot, facts, sharing)
    activations += tail_bytes(specs, *tail_sizes(boot)) * sharing
    room = max(0, total - weights - activations)
    try:
        check_weights(boot.facts, plan.dtype, total, share=share, weight_bits=plan.weight_bits)
        cache = plan_cache(boot.settings.config, facts.max_model_len, groups, size, room, shadow_bytes)
    except NotEnoughMemory as error:
        return MemoryPlan(total, weights, activations, None, f"{error.message}; {error.hint}")
    return MemoryPlan(total, weights, activations, cache)


def held_by(boot: Boot, num_blocks: int) -> tuple[int, int]:
    """The longest request that so many blocks hold, in tokens, as in :attr:`MemoryPlan.num_tokens`; and their bytes on
    each device."""
    sharing = len(boot.plan.ranks_on_same_device(0))
    specs, groups, size, shadow_bytes = _pool(boot, sharded(boot.facts, boot.plan.tensor), sharing)
    longest = _longest(groups, num_blocks, ANY_LENGTH + 1) if specs else 0
    return longest, num_blocks * (size + shadow_bytes)


def _pool(boot: Boot, facts: ModelFacts, sharing: int) -> tuple[list[CacheSpec], tuple[CacheGroup, ...], int, int]:
    """Of a device: the caches of its layers, their groups, and the bytes of a block, without and of shadows."""
    sited = list(_cache_specs(boot, facts))[:: boot.plan.pipeline]
    specs = [spec for _, spec in sited]
    (groups,) = cache_groups(boot, [specs])
    kept = sites_with_shadows(boot.plan, facts)
    shadow_bytes = sum(spec.page_bytes for site, spec in sited if site in kept) * sharing
    return specs, tuple(groups), block_bytes(specs, groups) * sharing, shadow_bytes


def sites_with_shadows(plan: Plan, facts: ModelFacts) -> set[str]:
    """The attention sites for which shadows have a separate cache."""
    shadowed = {(shadow.choice.kind, shadow.choice.site) for shadow in plan.shadows}
    ops = {op.attention for op in facts.ops if op.attention and ("op", op.site) in shadowed}
    return ops | {site for kind, site in shadowed if kind == "attention"}


def _cache_specs(boot: Boot, facts: ModelFacts) -> Iterator[tuple[str, CacheSpec]]:
    """The expected site and cache spec of every layer, site by site, assuming layouts without padding."""
    for site in facts.attention:
        query = boot.plan.choice("attention", site.site).query
        assert isinstance(query, AttentionQuery)
        sizes = (query.block_size, query.block_size * cached_bytes(query, query.cache_dtype))
        window = query.sliding_window
        kind = SlidingWindowCache(*sizes, window) if window else FullAttentionCache(*sizes)
        yield from [(site.site, LatentCache(*sizes) if query.latent_dim else kind)] * site.num_layers
    size = boot.settings.config.cache.block_size
    for rows in facts.rows:
        yield from [(rows.site, RowsCache.of(size, rows.tensors))] * rows.num_layers
    for state in facts.recurrent:
        yield from [(state.site, RecurrentCache.of(state.tensors, state.inputs))] * state.num_layers


def weight_bytes(facts: ModelFacts, dtype: str, weight_bits: Mapping[str, float] = MappingProxyType({})) -> int:
    """Bytes of a model's weights. ``weight_bits`` are the bits per element of weight formats; weights of other sites,
    and other parameters, have ``dtype``."""
    quantized, size = 0, 0.0
    for weight_format, elements in _elements(facts):
        if weight_format in weight_bits:
            quantized += elements
            size += elements * weight_bits[weight_format] / 8
    return int(size) + (facts.num_parameters - quantized) * DTYPE_BYTES[dtype]


def _elements(facts: ModelFacts) -> Iterator[tuple[str, int]]:
    """The weight format of each linear and MoE site, and how many elements its weights have."""
    for site in facts.linear:
        yield site.weight_format, site.count * site.in_features * site.out_features
    for moe in facts.moe:
        inner = expanded_size(moe) + moe.intermediate_size
        yield moe.weight_format, moe.count * moe.num_experts * moe.hidden_size * inner


def check_weights(
    facts: ModelFacts,
    dtype: str,
    available: int,
    *,
    share: float = 1.0,
    weight_bits: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Raises :class:`~llmk.api.NotEnoughMemory` if a fraction ``share`` of the weights alone exceeds ``available``
    bytes."""
    needed = int(share * weight_bytes(facts, dtype, weight_bits))
    if needed > available:
        narrow = " and ".join(f"{bits:g}" for bits in sorted(set(weight_bits.values())))
        raise NotEnoughMemory(
            f"the weights need {gib(needed)} ({int(share * facts.num_parameters):,} parameters in {dtype}"
            f"{f', quantized layers in {narrow} bits' if narrow else ''}), {gib(available)} is free",
            hint="free memory, choose a smaller checkpoint or a narrower --model.dtype, or spread the weights over "
            "devices (--parallel.tensor)",
        )


def check_context(facts: ModelFacts, dtype: str, available: int, *, share: float = 1.0) -> None:
    """Raises :class:`~llmk.api.NotEnoughMemory` if, for the longest request, a fraction ``share`` of the full-attention
    cache alone exceeds ``available`` bytes. Called before anything of that length is allocated."""
    full = sum(cached_bytes(site, dtype) * site.num_layers for site in facts.attention if not site.sliding_window)
    per_token = max(1.0, full * share)
    if facts.max_model_len * per_token > available:
        raise NotEnoughMemory(
            f"the cache needs {gib(int(facts.max_model_len * per_token))} for one request of {facts.max_model_len}"
            f" tokens, {gib(available)} is free",
            hint=f"lower --max-model-len to {int(available / per_token)} or less",
        )


def cache_problems(cache: CacheSection, platform: PlatformFacts) -> list[Problem]:
    """What is wrong with a cache that takes all of a device's memory: it would fail when it is allocated, or in the
    first large step."""
    room = platform.memory_bytes / (1 << 30)
    if not room:
        return []
    if cache.memory_gib >= room:
        message = f"{cache.memory_gib:g} GiB for the cache, but {platform.device_name} has only {room:.0f} GiB"
        return [Problem("cache.memory_gib", message, "leave cache.memory_gib at 0 to use a share of the free memory")]
    if cache.memory_share == 1 and not (cache.memory_gib or cache.num_blocks):
        message = "the cache would take all memory except the weights', and leave none for activations"
        return [Problem("cache.memory_share", message, "set cache.memory_share to 0.95 or less, or leave it out")]
    return []


def activation_bytes(facts: ModelFacts, tokens: int, rows: int) -> int:
    """Estimated peak memory of the activations of a step with ``tokens`` tokens and ``rows`` sampled rows."""
    sites = [site for site in facts.linear if site.out_features != facts.vocab_size]
    widest = max((site.in_features + site.out_features for site in sites), default=0)
    inner = [(site, expanded_size(site) + site.intermediate_size) for site in facts.moe]
    experts = max((site.top_k * (site.hidden_size + size) for site, size in inner), default=0)
    per_token = (4 * facts.hidden_size + max(widest, experts)) * DTYPE_BYTES[facts.dtype]
    return tokens * per_token + rows * facts.vocab_size * _SAMPLING_BYTES


def tail_sizes(boot: Boot) -> tuple[int, int]:
    """Requests and drafts of each that recurrent layers have tails for; (0, 0) where nothing drafts, or no layer is
    recurrent."""
    config = boot.settings.config
    if speculation_of(boot.plan) is None or not boot.facts.recurrent:
        return 0, 0
    return config.scheduler.max_num_seqs, config.speculation.num_drafts


def tail_bytes(specs: Sequence[CacheSpec], requests: int, drafts: int) -> int:
    """Bytes of what recurrent layers keep of so many drafts for each of so many requests
    (:class:`~llmk.api.DraftTails`)."""
    states = [spec for spec in specs if isinstance(spec, RecurrentCache)]
    return (requests + 1) * drafts * sum(tensor.num_bytes for spec in states for tensor in spec.inputs)


def plan_cache(
    config: Config,
    max_model_len: int,
    groups: Sequence[CacheGroup],
    block_bytes: int,
    available: int,
    shadow_bytes: int = 0,
) -> CachePlan:
    """Sizes the block pool.

    Args:
        max_model_len: longest sequence, in tokens.
        groups: the model's cache groups, which share the pool.
        block_bytes: bytes of one block.
        available: bytes that are free with the weights loaded, minus what steps need.
        shadow_bytes: additional bytes per block for caches of shadows.

    Raises:
        NotEnoughMemory: if not even one request of ``max_model_len`` tokens would fit.
    """
    cache, block_bytes = config.cache, block_bytes + shadow_bytes
    per_request = _blocks_alone(groups, max_model_len)
    useful = sum(group.blocks_for(max_model_len) for group in groups) * config.scheduler.max_num_seqs
    if cache.num_blocks:
        blocks, why = cache.num_blocks, "cache.num_blocks"
    elif cache.memory_gib:
        blocks, why = int(cache.memory_gib * _GIB) // block_bytes, f"cache.memory_gib = {cache.memory_gib:g}"
    else:
        budget = int(available * cache.memory_share)
        blocks, why = budget // block_bytes, f"{cache.memory_share:.0%} of the {gib(available)} that is free"
        if blocks > useful:
            blocks, why = useful, f"all that {config.scheduler.max_num_seqs} requests of {max_model_len} tokens can use"
    if blocks * block_bytes > available:
        raise NotEnoughMemory(
            f"the cache needs {gib(blocks * block_bytes)} ({blocks} blocks of {block_bytes:,} bytes, by {why}),"
            f" {gib(available)} is free besides the weights",
            hint="lower cache.num_blocks or cache.memory_gib, or leave both at 0",
        )
    if blocks < per_request:
        raise NotEnoughMemory(
            f"the cache needs {per_request} blocks ({gib(per_request * block_bytes)}) for one request of "
            f"{max_model_len} tokens, and {blocks} fit ({gib(blocks * block_bytes)}, by {why})",
            hint=_hint_for_room(cache, per_request, block_bytes, _longest(groups, blocks, max_model_len)),
        )
    return CachePlan(blocks, block_bytes, why, tuple(groups), shadow_bytes)


def _hint_for_room(cache: CacheSection, blocks: int, block_bytes: int, longest: int) -> str:
    """The settings that would make room for ``blocks`` blocks, or limit requests to the ``longest`` that fits."""
    if cache.num_blocks:
        more = f"raise cache.num_blocks to {blocks} or more"
    elif cache.memory_gib:
        more = f"raise cache.memory_gib to {math.ceil(blocks * block_bytes / _GIB * 1000) / 1000:g} or more"
    else:
        more = "free memory, or raise cache.memory_share"
    return f"lower --max-model-len to {longest} or less, or {more}" if longest > 0 else more


def _blocks_alone(groups: Sequence[CacheGroup], num_tokens: int) -> int:
    """Blocks that a single request of ``num_tokens`` tokens needs."""
    return sum(group.most_held(num_tokens, 1) for group in groups)


def _longest(groups: Sequence[CacheGroup], num_blocks: int, limit: int) -> int:
    """The longest request, below ``limit`` tokens, that fits in ``num_blocks`` blocks."""
    return bisect_right(range(limit), num_blocks, key=lambda length: _blocks_alone(groups, length)) - 1


def gib(num_bytes: int) -> str:
    """A human-readable size: in GiB, or in MiB below 0.1 GiB."""
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB // 10 else f"{num_bytes / (1 << 20):.1f} MiB"
