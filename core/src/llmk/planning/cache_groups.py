"""Cache groups: layers that cache the same kind of data for the same tokens, and therefore share a block table.

All groups allocate blocks from one pool. A block has one page per layer of the largest group, each page as large as the
largest one. To waste little, layers of one kind are split into groups of about as many layers as the rarest kind has.
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
"""In bytes; enough for tensors of every dtype."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one block table.

    Attributes:
        block_size: tokens per block.
        retained: how many of the last tokens must stay cached; ``None``: all. Blocks of earlier tokens are freed.
        layers: the layers' indices in the model's list of cache specs.
    """

    block_size: int
    retained: int | None = None
    layers: tuple[int, ...] = ()

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks for ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def first_needed(self, num_computed: int) -> int:
        """Index of the first block that is still read after ``num_computed`` tokens were computed."""
        return 0 if self.retained is None else max(0, num_computed - self.retained) // self.block_size

    def most_held(self, num_tokens: int, chunk: int) -> int:
        """The largest number of blocks that a request of ``num_tokens`` tokens holds at a time, if each step computes
        at most ``chunk`` tokens.
        """
        whole = self.blocks_for(num_tokens)
        return whole if self.retained is None else min(whole, self.blocks_for(self.retained + chunk) + 1)


def form_groups(stages: Sequence[Sequence[CacheSpec]], *, state_block_size: int) -> list[tuple[CacheGroup, ...]]:
    """Groups layers with equal specs. Recurrent state is stored every ``state_block_size`` tokens.

    Args:
        stages: the specs of each pipeline stage's layers.

    Returns:
        The groups of each stage. All stages have the same groups, each with the stage's own layers, which may be none.
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
    """The cache groups of each stage, from the specs of its layers.

    With prefix caching, the interval at which recurrent state is stored is a multiple of the block size of every
    attention site and of rows, so that a cached prefix can end at a block boundary of all groups. Without it, the
    interval is longer than any sequence.
    """
    config = boot.settings.config.cache
    queries = (choice.query for choice in boot.plan.choices)
    rows = (config.block_size,) if boot.facts.rows else ()
    unit = lcm(*(query.block_size for query in queries if isinstance(query, AttentionQuery)), *rows)
    apart = -(-config.state_block_size // unit) * unit if config.prefix_caching else boot.facts.max_model_len + 1
    return form_groups(stages, state_block_size=apart)


def group_width(counts: Sequence[int]) -> int:
    """Layers per group, where ``counts`` are the numbers of layers of each kind: that of the rarest kind, or of the
    most common one if that wastes less than half of the blocks of the rarest.
    """
    rarest, most_common = min(counts), max(counts)
    return most_common if 2 * most_common < 3 * rarest else rarest


def block_bytes(specs: Sequence[CacheSpec], groups: Sequence[CacheGroup]) -> int:
    """Bytes of a block, over all layers."""
    return width_of(groups) * page_bytes(specs) if specs else 0


def width_of(groups: Sequence[CacheGroup]) -> int:
    """Number of layers in the largest group."""
    return max(len(group.layers) for group in groups)


def page_bytes(specs: Sequence[CacheSpec]) -> int:
    """Bytes of a page that is large enough for every layer."""
    sizes = [state_offsets(spec.pages)[-1] if spec.pages else spec.page_bytes for spec in specs]
    return aligned(max(sizes)) if len(set(sizes)) > 1 else sizes[0]


def state_offsets(tensors: Sequence[StateTensor]) -> list[int]:
    """The offset of each tensor of a page, in bytes, followed by the page's size."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(aligned(offsets[-1] + tensor.num_bytes))
    return offsets


def aligned(num_bytes: int) -> int:
    """``num_bytes``, rounded up to the alignment."""
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
