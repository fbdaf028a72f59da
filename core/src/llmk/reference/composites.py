"""Composite ops over attention: factories that build a larger op from the parts that were chosen for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def make_qk_norm_rope_write_kv(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``qk_norm_rope_write_kv`` from ``rms_norm``, ``rope`` and the attention backend's ``attention.write``."""
    return _make_qk_norm_rope_write_kv(parts["rms_norm"], parts["rope"], parts["attention.write"])


def make_qk_norm_plus_one_rope_write_kv(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``qk_norm_plus_one_rope_write_kv``, which is ``qk_norm_rope_write_kv`` with the norm of the part
    ``rms_norm_plus_one``."""
    return _make_qk_norm_rope_write_kv(parts["rms_norm_plus_one"], parts["rope"], parts["attention.write"])


def _make_qk_norm_rope_write_kv(
    norm: Callable[..., Any], rotate: Callable[..., Any], write: Callable[..., Any]
) -> Callable[..., Tensor]:
    def qk_norm_rope_write_kv(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        meta: Any,
    ) -> Tensor:
        """Norms the heads of ``q`` and ``k`` where there is a weight, rotates both, and stores ``k`` and ``v`` in
        the cache.

        Args:
            q: ``[tokens, heads, head_dim]``; ``k`` and ``v``: ``[tokens, kv_heads, head_dim]``.
            q_weight, k_weight: ``[head_dim]``; ``None``: not normed.
            positions, cos_sin: as in :func:`llmk.reference.rope.rope`.
            cache, meta: as in :meth:`llmk.api.AttentionBackend.write`.

        Returns:
            The new ``q``.
        """
        if q_weight is not None:
            q = norm(q, q_weight, eps)
        if k_weight is not None:
            k = norm(k, k_weight, eps)
        q, k = rotate(q, k, positions, cos_sin)
        write(k, v, cache, meta)
        return q

    return qk_norm_rope_write_kv
