"""The contract of attention backends: the cache layout, preparing a step, writing K/V, and attention itself."""

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
    """The memory layout of a layer's cache.

    ``shape`` is the shape of one layer's tensor for the requested number of blocks; ``block_dim`` is the dimension of
    the blocks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block_dim: int = 0


class AttentionBackend(Protocol):
    """Attention of all layers that share one :class:`~llmk.api.query.AttentionQuery`. One instance per query and
    device.

    :meth:`run` never writes to the cache; only :meth:`write` does, so that a fused op can replace it.

    If the query has a ``latent_dim``, a token's value is the first ``latent_dim`` elements of its key and isn't stored
    separately: :meth:`write` gets ``None`` as ``value``, and :meth:`run` returns ``[tokens, heads, latent_dim]``. If it
    has a ``value_dim``, values are ``[tokens, kv_heads, value_dim]``, and the result is ``[tokens, heads, value_dim]``.

    If the query's ``cache_dtype`` is fp8, the cache holds the keys and values divided by the layer's ``scales`` (one
    for keys, one for values), rounded to nearest and clamped to the dtype's range; :meth:`run` multiplies by the
    scales. Layers pass ``scales`` only if the cache is fp8.

    If it is ``"int8"`` or ``"int4"``, each vector (a head's key or value of one token, or a latent row) is stored as
    integers with a float32 scale of its own, which the layout has room for: the scale is the vector's largest magnitude
    divided by 127 or 7 (1 for a vector of zeros), and the integers are the elements divided by it, rounded to nearest,
    ties to even; all in float32. :meth:`run` attends over the integers times their scales. The layout's ``dtype`` is
    then one of a byte, ``"int8"`` or ``"uint8"``, and its shape counts bytes.

    Scores may have any magnitude that float32 holds, of either sign, also where all that a token sees are far below
    zero, or below those of a sink.

    Arguments without a default are passed by position, the others by name.

    A layer's cache may be strided along ``block_dim``, if blocks of several layouts share one pool.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None: ...

    @abstractmethod
    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """The layout of one layer's cache of ``num_blocks`` blocks."""
        ...

    @abstractmethod
    def prepare(self, step: CacheStep) -> Any:
        """Called once per step and cache group: computes ``meta`` for :meth:`write` and :meth:`run` from the step's
        index tensors."""
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
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``, values of ``value_dim`` if the query has one)
        in ``cache`` at the step's slots, in place."""
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
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache. The result has the same shape and
        dtype, unless the query has a ``latent_dim`` or ``value_dim``.

        ``sinks`` (``[heads]``, float32) are the logits of an attention sink, which has no value; given if
        ``AttentionQuery.sinks``. A backend that knows ``AttentionQuery.alibi`` takes a further
        argument by name where a query has it: ``slopes`` (``[heads]``, float32), those of this rank's heads.
        """
        ...
