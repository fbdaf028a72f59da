"""How much memory goes where. Every refusal says what is needed for what, what there is, and which setting helps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmk.api import ModelFacts, NotEnoughMemory
from llmk.api.cache import DTYPE_BYTES

if TYPE_CHECKING:
    from llmk.config.schema import Config
    from llmk.engine.groups import CacheGroup

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The size of the block pool, and where that number comes from."""

    num_blocks: int
    block_bytes: int
    why: str
    groups: tuple[CacheGroup, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole pool, over all layers."""
        return self.num_blocks * self.block_bytes


def check_weights(
    facts: ModelFacts, dtype: str, available: int, *, share: float = 1.0, quantized: bool = False
) -> None:
    """Raises :class:`~llmk.api.NotEnoughMemory` where a ``share`` of the weights alone doesn't fit in ``available``
    bytes. Where they are ``quantized``, a number at a site that may be is counted as one byte."""
    narrow = 0
    if quantized:
        narrow += sum(site.count * site.in_features * site.out_features for site in facts.linear if site.quantizable)
        narrow += sum(3 * moe.count * moe.num_experts * moe.hidden_size * moe.intermediate_size for moe in facts.moe)
    needed = int(share * (narrow + (facts.num_parameters - narrow) * DTYPE_BYTES[dtype]))
    if needed > available:
        raise NotEnoughMemory(
            f"the weights need {gib(needed)} ({int(share * facts.num_parameters):,} parameters in {dtype}"
            f"{', those of products in 8 bits' if narrow else ''}), {gib(available)} is free",
            hint="free memory, choose a smaller checkpoint, or a narrower --model.dtype",
        )


def plan_cache(
    config: Config, max_model_len: int, groups: Sequence[CacheGroup], block_bytes: int, available: int
) -> CachePlan:
    """Sizes the block pool.

    Args:
        max_model_len: longest sequence, in tokens.
        groups: the model's cache groups, which share the pool.
        block_bytes: bytes of one block.
        available: bytes that are free now that the weights are loaded.

    Raises:
        NotEnoughMemory: where not even one request of ``max_model_len`` tokens would fit.
    """
    cache = config.cache
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
            f" {gib(available)} is free beside the weights",
            hint="lower cache.num_blocks or cache.memory_gib, or leave both at 0",
        )
    if blocks < per_request:
        longest = _longest(groups, blocks, max_model_len)
        raise NotEnoughMemory(
            f"the cache needs {per_request} blocks ({gib(per_request * block_bytes)}) for one request of "
            f"{max_model_len} tokens, and {blocks} fit ({gib(blocks * block_bytes)}, by {why})",
            hint=f"lower --max-model-len to {longest} or less, or raise the cache's memory",
        )
    return CachePlan(blocks, block_bytes, why, tuple(groups))


def _blocks_alone(groups: Sequence[CacheGroup], num_tokens: int) -> int:
    """Blocks that a request of ``num_tokens`` tokens needs if it has the pool to itself."""
    return sum(group.most_held(num_tokens, 1) for group in groups)


def _longest(groups: Sequence[CacheGroup], num_blocks: int, limit: int) -> int:
    """The longest request below ``limit`` tokens that ``num_blocks`` blocks hold."""
    return bisect_right(range(limit), num_blocks, key=lambda length: _blocks_alone(groups, length)) - 1


def gib(num_bytes: int) -> str:
    """A size for people: GiB, or MiB below a tenth of one."""
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB // 10 else f"{num_bytes / (1 << 20):.1f} MiB"
