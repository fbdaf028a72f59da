"""Cache specs, by which layers declare the state that they keep between steps, so that one block pool can serve any mix
of layers; and :class:`CacheStep`, the index tensors of a step for one group of such layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1}
"""Bytes per element, by torch's name of the dtype."""

SCALED_BITS = {"int8": 8, "int4": 4}
"""Bits per element of caches whose vectors have scales (:class:`~llmk.api.attention.AttentionBackend`), by
``cache_dtype``."""
SCALE_BYTES = 4
"""Bytes of such a scale, which is float32."""


def vector_bytes(cache_dtype: str, size: int) -> int:
    """Bytes that a cache takes for one vector of ``size`` elements, a head's key or value of one token: with its scale,
    where vectors have scales."""
    if bits := SCALED_BITS.get(cache_dtype):
        return -(-size * bits // 8) + SCALE_BYTES
    return size * DTYPE_BYTES[cache_dtype]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Base of all cache specs. Layers with equal specs form a cache group, which has one block table."""

    block_size: int
    """Tokens per block."""
    page_bytes: int
    """Bytes that one layer stores for one block."""

    @property
    def pages(self) -> tuple[StateTensor, ...]:
        """What a layer stores for one block, where ops find it by the step themselves; empty: an attention backend lays
        it out."""
        return ()


@dataclass(frozen=True, slots=True)
class FullAttentionCache(CacheSpec):
    """Keys and values of every earlier token."""


@dataclass(frozen=True, slots=True)
class SlidingWindowCache(CacheSpec):
    """Keys and values of the last ``window`` tokens; blocks outside the window are freed."""

    window: int = 0


@dataclass(frozen=True, slots=True)
class LatentCache(CacheSpec):
    """One latent vector for every earlier token, which is the key of all heads; a part of it is the value."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a recurrent layer's state, for one request: ``[*shape]`` in ``dtype`` (torch's name)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    accumulates: bool = False
    """Whether small changes accumulate in it over many tokens, so that ``cache.state_dtype`` is its dtype, not the
    engine's."""

    @property
    def num_bytes(self) -> int:
        """The tensor's size in bytes."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class RecurrentCache(CacheSpec):
    """The recurrent state after the last token.

    A block holds the state after its last computed token, so full blocks are snapshots that can be prefix-cache hits.
    With ``block_size`` 0 the engine chooses the distance between snapshots, and passes it with each step
    (:attr:`CacheStep.block_size`).
    """

    tensors: tuple[StateTensor, ...] = ()
    inputs: tuple[StateTensor, ...] = ()
    """What a token adds to the state is computed from: one row of each. Only a layer that names them can be used with
    drafts (:class:`DraftTails`)."""

    @property
    def pages(self) -> tuple[StateTensor, ...]:
        """The state."""
        return self.tensors

    @classmethod
    def of(cls, tensors: tuple[StateTensor, ...], inputs: tuple[StateTensor, ...] = ()) -> RecurrentCache:
        """The spec of a layer whose state is ``tensors``."""
        return cls(0, sum(tensor.num_bytes for tensor in tensors), tensors, inputs)


@dataclass(frozen=True, slots=True)
class RowsCache(CacheSpec):
    """Rows of every earlier token, which ops read and write by the block table themselves: a tensor ``[num_blocks,
    block_size, *shape]`` for each of ``tensors``."""

    tensors: tuple[StateTensor, ...] = ()

    @property
    def pages(self) -> tuple[StateTensor, ...]:
        """The rows of a block."""
        return tuple(replace(tensor, shape=(self.block_size, *tensor.shape)) for tensor in self.tensors)

    @classmethod
    def of(cls, block_size: int, tensors: tuple[StateTensor, ...]) -> RowsCache:
        """The spec of a layer that keeps ``tensors`` for each token."""
        return cls(block_size, block_size * sum(tensor.num_bytes for tensor in tensors), tensors)


@dataclass(frozen=True, slots=True)
class DraftTails:
    """What recurrent layers must know of drafts in a step, since a state can't be taken back.

    With drafts, a state is that after the last token that was no draft when it was computed. A layer keeps the inputs
    of a request's drafts in its tail, ``[slots + 1, most, *shape]`` for each of :attr:`RecurrentCache.inputs`. In the
    next step, it advances over those that were accepted, then over the tokens that are no drafts, and stores the state;
    it computes the outputs of the drafts, stores no state for these, and puts their inputs in the tail. The last row of
    a tail is for padding.

    Attributes:
        slots: int64 ``[requests]``, the rows of the tails; -1: padding.
        accepted: int64 ``[requests]``, how many of the inputs in each tail, from the first on, the state lacks.
        num_drafts: int64 ``[requests]``, how many of the request's last tokens in this step are drafts.
    """

    slots: torch.Tensor
    accepted: torch.Tensor
    num_drafts: torch.Tensor


@dataclass(slots=True)
class CacheStep:
    """One step's index tensors for one cache group, on the device.

    The tokens of the requests are concatenated. A step that is captured as a graph is padded: it ends with requests
    without tokens (length 0, ``query_start`` repeats) and with tokens of no request (slot -1), whose results are not
    used. A replay has at most as many requests and tokens as were captured, and sequences at most as long; a decision
    that does not depend on the tensors' contents must be right for all of them.

    The data of token ``t`` of request ``i`` is in block ``block_table[i, t // block_size]``. For attention, it is at
    offset ``t % block_size`` of the block. For recurrent state, the block holds the state after its last token so far.
    A recurrent layer reads the initial state from the block of the token before the request's first token in this step
    (before the first token of a request, the state is zeros and nothing is read), and writes the state after each token
    that fills a block and after the last token. Table entries of blocks that a group no longer needs are arbitrary and
    must not be read; where a kernel reads tiles of keys, the entries of the 512 tokens before those that are needed
    name blocks, which hold anything.

    Attributes:
        query_start: int32 ``[requests + 1]``, the row of each request's first token, then the number of tokens.
        seq_lens: int32 ``[requests]``, tokens in the cache after this step's tokens are written.
        block_table: int32 ``[requests, max_blocks]``, block ids of each request in order.
        slot_mapping: int64 ``[tokens]``, ``block id * block_size + offset`` of each token; nothing is written for -1.
        num_requests, num_tokens: the numbers of requests and tokens, including padding.
        max_query_len, max_seq_len: upper bounds that the host knows; they are never computed from tensors.
        block_size: tokens per block of this group.
        host_query_lens, host_seq_lens: tokens of each request in this step, and in the cache after it, without padding,
            for backends that plan on the host (``KernelSpec.host_lengths``); empty when a step is captured, and where
            only the device knows the lengths, as while drafts in flight may be rejected. All tokens that they count
            have slots.
        tails: where the step verifies drafts, or states lack accepted ones, for recurrent layers. The initial state is
            then that before the accepted inputs in the tail.
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
    tails: DraftTails | None = None
