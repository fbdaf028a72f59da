"""Cache groups: layers that keep the same kind of thing for the same tokens, and so share a block table.

All groups take their blocks from one pool: a block is as many pages as a group has layers at most, each as large as the
largest page. So layers of one kind are split into groups of about as many layers as the rarest kind has, and little is
left unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

from llmk.api import AttentionQuery, CacheSpec, RecurrentCache, SlidingWindowCache, StateTensor

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

_ALIGNMENT = 16
"""Bytes; tensors of every dtype may begin at a multiple of it."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one block table.

    Attributes:
        block_size: tokens per block.
        retained: how many tokens before the next one must stay; ``None``: all. Blocks of earlier ones are given back.
        layers: the layers' places among the model's cache specs.
    """

    block_size: int
    retained: int | None = None
    layers: tuple[int, ...] = ()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def first_needed(self, num_computed: int) -> int:
        """The first block that is read again once ``num_computed`` tokens are computed."""
        return 0 if self.retained is None else max(0, num_computed - self.retained) // self.block_size

    def most_held(self, num_tokens: int, chunk: int) -> int:
        """The most blocks that a request of ``num_tokens`` tokens holds at once, of which each step computes no more
        than ``chunk``.
        """
        whole = self.blocks_for(num_tokens)
        return whole if self.retained is None else min(whole, self.blocks_for(self.retained + chunk) + 1)


def form_groups(stages: Sequence[Sequence[CacheSpec]], *, state_block_size: int) -> list[tuple[CacheGroup, ...]]:
    """Groups layers with equal specs; recurrent state is kept every ``state_block_size`` tokens.

    Args:
        stages: the specs of each pipeline stage's layers.

    Returns:
        The groups of each stage. All stages have the same ones, each with its own layers, if any.
    """
    sized = [[_sized(spec, state_block_size) for spec in specs] for specs in stages]
    counts = Counter(spec for specs in sized for spec in specs)
    width = group_width(list(counts.values()))
    return [
        tuple(
            CacheGroup(kind.block_size, _retained(kind), layers)
            for kind, count in counts.items()
            for layers in _parts([layer for layer, spec in enumerate(specs) if spec == kind], -(-count // width))
        )
        for specs in sized
    ]


def cache_groups(boot: Boot, stages: Sequence[Sequence[CacheSpec]]) -> list[tuple[CacheGroup, ...]]:
    """The cache groups of each stage, by its layers' specs.

    Recurrent state is kept every so many tokens: a multiple of every attention site's block size, so that prefixes can
    end where all groups have something; without prefix caching, more than any sequence has.
    """
    config = boot.settings.config.cache
    queries = (choice.query for choice in boot.plan.choices)
    unit = lcm(*(query.block_size for query in queries if isinstance(query, AttentionQuery)))
    apart = -(-config.state_block_size // unit) * unit if config.prefix_caching else boot.facts.max_model_len + 1
    return form_groups(stages, state_block_size=apart)


def group_width(counts: Sequence[int]) -> int:
    """Layers per group, for kinds of layers that there are ``counts`` of: as many as of the rarest kind, or as of the
    commonest where that wastes less than half of the rarest's blocks.
    """
    rarest, commonest = min(counts), max(counts)
    return commonest if 2 * commonest < 3 * rarest else rarest


def block_bytes(specs: Sequence[CacheSpec], groups: Sequence[CacheGroup]) -> int:
    """Bytes that a block takes over all layers."""
    return width_of(groups) * page_bytes(specs) if specs else 0


def width_of(groups: Sequence[CacheGroup]) -> int:
    """Layers of the largest group."""
    return max(len(group.layers) for group in groups)


def page_bytes(specs: Sequence[CacheSpec]) -> int:
    """Bytes of a page that any of the layers can use."""
    sizes = [state_offsets(s.tensors)[-1] if isinstance(s, RecurrentCache) else s.page_bytes for s in specs]
    return aligned(max(sizes)) if len(set(sizes)) > 1 else sizes[0]


def state_offsets(tensors: Sequence[StateTensor]) -> list[int]:
    """Where each tensor of a recurrent layer's state begins in its page, in bytes; last, the page's end."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(aligned(offsets[-1] + tensor.num_bytes))
    return offsets


def aligned(num_bytes: int) -> int:
    """``num_bytes``, rounded up so that what follows is aligned."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _retained(spec: CacheSpec) -> int | None:
    if isinstance(spec, RecurrentCache):
        return 1
    return spec.window - 1 if isinstance(spec, SlidingWindowCache) else None


def _sized(spec: CacheSpec, state_block_size: int) -> CacheSpec:
    return spec if spec.block_size else replace(spec, block_size=state_block_size)


def _parts(layers: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """``layers`` in ``count`` parts of about equal size."""
    for part in range(count):
        yield tuple(layers[part * len(layers) // count : (part + 1) * len(layers) // count])
