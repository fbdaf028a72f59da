"""Cache groups: layers that keep the same kind of thing for the same tokens, and so share a block table.

All groups take their blocks from one pool: a block is as many pages as a group has layers at most, each as large as the
largest page. So layers of one kind are split into groups of about as many layers as the rarest kind has, and little is
left unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmk.api import CacheSpec, RecurrentCache, SlidingWindowCache, StateTensor

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


def form_groups(specs: Sequence[CacheSpec], *, state_block_size: int) -> list[CacheGroup]:
    """Groups layers with equal specs; recurrent state is kept every ``state_block_size`` tokens."""
    kinds: dict[CacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        sized = spec if spec.block_size else replace(spec, block_size=state_block_size)
        kinds.setdefault(sized, []).append(layer)
    width = group_width([len(layers) for layers in kinds.values()])
    return [
        CacheGroup(spec.block_size, _retained(spec), tuple(layers[start : start + width]))
        for spec, layers in kinds.items()
        for start in range(0, len(layers), width)
    ]


def group_width(counts: Sequence[int]) -> int:
    """Layers per group, for kinds of layers that there are ``counts`` of: as many as of the rarest kind, or as of the
    commonest where that wastes less than half of the rarest's blocks.
    """
    rarest, commonest = min(counts), max(counts)
    return commonest if 2 * commonest < 3 * rarest else rarest


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
