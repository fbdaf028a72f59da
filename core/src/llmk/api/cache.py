"""What a layer keeps between steps, declared so that one block pool can serve any mix of layers; and a step, as one
group of such layers sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1}
"""Bytes of an element, by torch's name of the dtype."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Base of all cache specs. Layers with equal specs share a cache group, hence one block table."""

    block_size: int
    """Tokens per block."""
    page_bytes: int
    """Bytes that one layer stores for one block."""


@dataclass(frozen=True, slots=True)
class FullAttentionCache(CacheSpec):
    """Keys and values of every earlier token."""


@dataclass(frozen=True, slots=True)
class SlidingWindowCache(CacheSpec):
    """Keys and values of the last ``window`` tokens; blocks that fall out of it are freed."""

    window: int = 0


@dataclass(frozen=True, slots=True)
class LatentCache(CacheSpec):
    """One compressed row for every earlier token, which all heads read as keys and, in part, as values."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a recurrent layer's state, for one request: ``[*shape]`` in ``dtype`` (torch's name)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Its bytes."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class RecurrentCache(CacheSpec):
    """The state after the last token.

    A block holds the state after its last computed token, so that full blocks are snapshots by which a prefix can be
    had again. ``block_size`` 0 leaves the distance between snapshots to the engine, which tells it with each step
    (:attr:`CacheStep.block_size`).
    """

    tensors: tuple[StateTensor, ...] = ()

    @classmethod
    def of(cls, tensors: tuple[StateTensor, ...]) -> RecurrentCache:
        """The spec of a layer that keeps ``tensors``."""
        return cls(0, sum(tensor.num_bytes for tensor in tensors), tensors)


@dataclass(slots=True)
class CacheStep:
    """One step's index tensors for one cache group, on the device.

    Requests lie one after the other along the token axis. A step that is captured as a graph is padded: requests
    without tokens come last (length 0, ``query_start`` repeats), and so do tokens that are nobody's (slot -1).
    What is computed for these is not looked at. Replays bring fewer requests and tokens than were captured, and shorter
    ones, never more: what can't be told from the tensors must hold for all of them.

    What is kept of token ``t`` of request ``i`` lies in block ``block_table[i, t // block_size]``. For attention, at
    offset ``t % block_size`` of it. For recurrent state, the block holds the state after its last token so far: a layer
    reads the state that stands before the request's first token of this step from the block of the token before (zeros,
    unread, where the request begins), and writes the state after every token that fills a block, and after the last.
    Table entries of blocks that a group no longer needs may name any block, and are not read.

    Attributes:
        query_start: int32 ``[requests + 1]``, first token row of each request; the last entry is the number of tokens.
        seq_lens: int32 ``[requests]``, tokens in the cache after this step's are written.
        block_table: int32 ``[requests, max_blocks]``, block ids of each request in order.
        slot_mapping: int64 ``[tokens]``, ``block id * block_size + offset`` of each token's own slot; -1 writes
            nothing.
        num_requests, num_tokens: how many there are, padding included.
        max_query_len, max_seq_len: upper bounds known on the host, passed in and never derived from tensors.
        block_size: tokens per block of this group.
        host_query_lens, host_seq_lens: what each request has in this step and in the cache after it, without padding,
            for backends that plan on the host; nothing where a step is captured. Tokens that they count have slots.
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    block_size: int
    host_query_lens: Sequence[int] = ()
    host_seq_lens: Sequence[int] = ()
