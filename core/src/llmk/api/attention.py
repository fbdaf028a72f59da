"""The contract of attention backends: cache layout, prepare a step, write K/V, run."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from llmk.api.cache import CacheStep
    from llmk.api.query import AttentionQuery


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The one truth about how a layer's cache lies in memory.

    ``shape`` is that of one layer's tensor for the number of blocks asked for; dimension ``block_dim`` counts blocks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block_dim: int = 0


class AttentionBackend(Protocol):
    """Attention of all layers that share one :class:`~llmk.api.query.AttentionQuery`. One instance per query and
    device.

    The cache is written by :meth:`write` alone, apart from :meth:`run`, so that a fused op may do the writing instead.

    Where the query has a ``latent_dim``, a token's value is the first ``latent_dim`` entries of its key, and isn't
    stored apart: :meth:`write` gets ``None`` for it, and :meth:`run` returns ``[tokens, heads, latent_dim]``.

    Where the query's ``cache_dtype`` is an fp8, what is stored is a layer's keys and values divided by its ``scales``
    (the keys', the values'), rounded to the nearest and kept within the dtype's range; :meth:`run` multiplies by them
    again. Layers pass ``scales`` where the cache is fp8, and there alone.

    Arguments without a default are passed by position, the others by name.

    A layer's cache may be strided along ``block_dim``, where blocks of several layouts share one pool.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None: ...

    @abstractmethod
    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """How one layer's cache of ``num_blocks`` blocks lies in memory."""
        ...

    @abstractmethod
    def prepare(self, step: CacheStep) -> Any:
        """Once a step and cache group: turns index tensors into what :meth:`write` and :meth:`run` take as ``meta``."""
        ...

    @abstractmethod
    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor | None,
        cache: torch.Tensor,
        meta: Any,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``) in ``cache`` at the step's slots, in
        place."""
        ...

    @abstractmethod
    def run(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        meta: Any,
        sinks: torch.Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> torch.Tensor:
        """Attends ``query`` (``[tokens, heads, head_dim]``) to the cache; returns the same shape and dtype,
        but for latent values.

        ``sinks`` (``[heads]``, float32) are logits of a value-less position, present where the query says so.
        """
        ...
