"""The contract of attention backends: cache layout, prepare a step, write K/V, run, capture support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from llmk.api.query import AttentionQuery

Capture = Literal["none", "decode", "full"]
"""Which steps a backend allows to be captured as a graph: none, those of one token per request, or all."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The one truth about how a layer's cache lies in memory.

    ``shape`` is that of one layer's tensor for the number of blocks asked for; dimension ``block_dim`` counts blocks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block_dim: int = 0


@dataclass(slots=True)
class AttentionStep:
    """One step's index tensors for one cache group, on the device.

    Requests lie one after the other along the token axis. Counts may be padded for graph capture; the true ones are
    given apart.

    Attributes:
        query_start: int32 ``[requests + 1]``, first token row of each request; the last entry is the number of tokens.
        seq_lens: int32 ``[requests]``, tokens in the cache after this step's are written.
        block_table: int32 ``[requests, max_blocks]``, block ids of each request in order.
        slot_mapping: int64 ``[tokens]``, ``block id * block_size + offset`` of each token's own slot; -1 writes
            nothing.
        num_requests, num_tokens: the true counts.
        max_query_len, max_seq_len: upper bounds known on the host, passed in and never derived from tensors.
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int


class AttentionBackend(Protocol):
    """Attention of all layers that share one :class:`~llmk.api.query.AttentionQuery`. One instance per query and
    device.

    The cache is written by :meth:`write` alone, apart from :meth:`run`, so that a fused op may do the writing instead.
    """

    capture: Capture

    def __init__(self, query: AttentionQuery, device: torch.device) -> None: ...

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """How one layer's cache of ``num_blocks`` blocks lies in memory."""
        ...

    def prepare(self, step: AttentionStep) -> Any:
        """Once a step and cache group: turns index tensors into what :meth:`write` and :meth:`run` take as ``meta``."""
        ...

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, meta: Any) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``) in ``cache`` at the step's slots, in
        place."""
        ...

    def run(
        self, query: torch.Tensor, cache: torch.Tensor, meta: Any, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attends ``query`` (``[tokens, heads, head_dim]``) to the cache; returns the same shape and dtype.

        ``sinks`` (``[heads]``, float32) are logits of a value-less position, present where the query says so.
        """
        ...
