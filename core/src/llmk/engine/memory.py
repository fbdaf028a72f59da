"""How much memory goes where. Every refusal says what is needed for what, what there is, and which setting helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmk.api import ModelFacts, NotEnoughMemory
from llmk.api.cache import DTYPE_BYTES

if TYPE_CHECKING:
    from llmk.config.schema import Config

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The size of the block pool, and where that number comes from."""

    num_blocks: int
    block_bytes: int
    why: str

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole pool, over all layers."""
        return self.num_blocks * self.block_bytes


def check_weights(facts: ModelFacts, dtype: str, available: int) -> None:
    """Raises :class:`~llmk.api.NotEnoughMemory` where the weights alone don't fit in ``available`` bytes."""
    needed = facts.num_parameters * DTYPE_BYTES[dtype]
    if needed > available:
        raise NotEnoughMemory(
            f"the weights need {gib(needed)} ({facts.num_parameters:,} parameters in {dtype}), "
            f"{gib(available)} is free",
            hint="free memory, choose a smaller checkpoint, or a narrower --model.dtype",
        )


def plan_cache(config: Config, max_model_len: int, block_bytes: int, available: int) -> CachePlan:
    """Sizes the block pool.

    Args:
        max_model_len: longest sequence, in tokens.
        block_bytes: bytes of one block over all layers.
        available: bytes that are free now that the weights are loaded.

    Raises:
        NotEnoughMemory: where not even one request of ``max_model_len`` tokens would fit.
    """
    cache = config.cache
    per_request = -(-max_model_len // cache.block_size)
    useful = per_request * config.scheduler.max_num_seqs
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
        raise NotEnoughMemory(
            f"the cache needs {per_request} blocks ({gib(per_request * block_bytes)}) for one request of "
            f"{max_model_len} tokens, and {blocks} fit ({gib(blocks * block_bytes)}, by {why})",
            hint=f"lower --max-model-len to {blocks * cache.block_size} or less, or raise the cache's memory",
        )
    return CachePlan(blocks, block_bytes, why)


def gib(num_bytes: int) -> str:
    """A size for people: GiB, or MiB below a tenth of one."""
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB // 10 else f"{num_bytes / (1 << 20):.1f} MiB"
