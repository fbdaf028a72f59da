"""Composite ops over attention: factories that build a larger op from the kernels that were chosen for its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.norms import NormOptions
from llmk.reference.rope.rotation import RopeOptions


class WriteOptions(NormOptions, total=False):
    """What an op that writes to the cache gets by name, where the site has it. ``scales`` are those of
    :meth:`llmk.api.AttentionBackend.write`, if the cache is fp8; ``axes`` and ``neighbours`` those of
    :class:`llmk.reference.rope.rotation.RopeOptions`, if the site's facts have ``rotary_sections`` or
    ``rotary_neighbours``; ``norm_after_rope``, whether heads are normed after their rotation, if the facts have it."""

    scales: tuple[float, float]
    axes: Tensor
    neighbours: bool
    norm_after_rope: bool


class AttentionOptions(WriteOptions, total=False):
    """What an op that attends also gets: ``sinks`` and ``slopes``, as in :meth:`llmk.api.AttentionBackend.run`, if the
    site's facts have ``attention_sinks`` or ``alibi``."""

    sinks: Tensor
    slopes: Tensor


def make_qk_norm_rope_write_kv(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``qk_norm_rope_write_kv`` from ``rms_norm``, ``rope`` and the attention backend's ``attention.write``."""
    norm, rotate, write = parts["rms_norm"], parts["rope"], parts["attention.write"]

    def qk_norm_rope_write_kv(
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        meta: Any,
        **options: Unpack[WriteOptions],
    ) -> Tensor:
        """Norms the heads of ``q`` and ``k`` if a weight is given, applies RoPE to both, or the other way round, and
        stores ``k`` and ``v`` in the cache.

        Args:
            q: ``[tokens, heads, head_dim]``; ``k`` and ``v``: ``[tokens, kv_heads, head_dim]``, values of ``value_dim``
                if the site's facts have one. Both are ``None``, and nothing is stored, if the facts have ``shared_kv``:
                another layer stored them.
            q_weight, k_weight: ``[head_dim]``; ``None``: not normed.
            positions, cos_sin: as in :func:`llmk.reference.rope.rotation.rope`; ``cos_sin`` is ``None``, and nothing
                rotated, if the site's facts have ``no_rope``.
            cache, meta: as in :meth:`llmk.api.AttentionBackend.write`.
            options: see :class:`WriteOptions`.

        Returns:
            The new ``q``.
        """
        offset: NormOptions = {}
        if "norm_offset" in options:
            offset["norm_offset"] = options.pop("norm_offset")
        after = options.pop("norm_after_rope", False)
        turn: RopeOptions = {}
        if "axes" in options:
            turn["axes"] = options.pop("axes")
        if "neighbours" in options:
            turn["neighbours"] = options.pop("neighbours")
        keys = q[:, :0] if k is None else k
        if cos_sin is not None and after:
            q, keys = rotate(q, keys, positions, cos_sin, **turn)
        if q_weight is not None:
            q = norm(q, q_weight, eps, **offset)
        if k_weight is not None and k is not None:
            keys = norm(keys, k_weight, eps, **offset)
        if cos_sin is not None and not after:
            q, keys = rotate(q, keys, positions, cos_sin, **turn)
        if k is not None:
            write(keys, v, cache, meta, **options)
        return q

    return qk_norm_rope_write_kv


def make_qk_norm_rope_attention(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``qk_norm_rope_attention`` from ``qk_norm_rope_write_kv`` and the attention backend's
    ``attention.run``."""
    write, attend = parts["qk_norm_rope_write_kv"], parts["attention.run"]

    def qk_norm_rope_attention(
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        meta: Any,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        """Stores the keys and values of a step's tokens in the cache, then computes their attention over it.

        Args are those of ``qk_norm_rope_write_kv``, and ``options`` those of :class:`AttentionOptions`. Returns
        ``[tokens, heads, head_dim]``, or of ``value_dim``.
        """
        given: dict[str, Any] = {}
        if "sinks" in options:
            given["sinks"] = options.pop("sinks")
        if "slopes" in options:
            given["slopes"] = options.pop("slopes")
        q = write(q, k, v, q_weight, k_weight, eps, positions, cos_sin, cache, meta, **options)
        if "scales" in options:
            given["scales"] = options["scales"]
        out: Tensor = attend(q, cache, meta, **given)
        return out

    return qk_norm_rope_attention


def make_norm_rope_write_latent(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``norm_rope_write_latent`` from ``rms_norm``, ``rope_interleaved`` and the attention backend's
    ``attention.write``."""
    norm, rotate, write = parts["rms_norm"], parts["rope_interleaved"], parts["attention.write"]

    def norm_rope_write_latent(
        q_rope: Tensor,
        latent: Tensor,
        weight: Tensor,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        meta: Any,
    ) -> Tensor:
        """Norms each token's latent vector, applies RoPE to the shared key that follows it, and stores both as one row
        of the cache; applies RoPE to ``q_rope``.

        Args:
            q_rope: ``[tokens, heads, rotary_dim]``.
            latent: ``[tokens, latent_dim + rotary_dim]``.
            weight: ``[latent_dim]``.
            positions, cos_sin: as in :func:`llmk.reference.rope.rotation.rope_interleaved`.
            cache, meta: as in :meth:`llmk.api.AttentionBackend.write`.

        Returns:
            The new ``q_rope``.
        """
        compressed, shared_key = latent.split_with_sizes([weight.shape[0], q_rope.shape[2]], dim=1)
        q_rope, k_rope = rotate(q_rope, shared_key[:, None], positions, cos_sin)
        write(torch.cat((norm(compressed, weight, eps)[:, None], k_rope), dim=-1), None, cache, meta)
        return q_rope

    return norm_rope_write_latent


def make_latent_attention(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``latent_attention`` from ``norm_rope_write_latent``, ``per_head_matmul`` and the attention backend's
    ``attention.run``."""
    write, matmul, attend = parts["norm_rope_write_latent"], parts["per_head_matmul"], parts["attention.run"]

    def latent_attention(
        q: Tensor,
        latent: Tensor,
        norm_weight: Tensor,
        eps: float,
        k_up: Tensor,
        v_up: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        meta: Any,
    ) -> Tensor:
        """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): only a latent vector per token is cached, from
        which keys and values are projected. Stores the step's own latent vectors first.

        Keys and values are not computed: the key projection is absorbed into the queries, and the value projection is
        applied to the result. Another implementation may compute them.

        Args:
            q: ``[tokens, heads, key_dim + rotary_dim]``, not yet rotated.
            latent, norm_weight, eps, positions, cos_sin, cache, meta: as in ``norm_rope_write_latent``.
            k_up: ``[heads, key_dim, latent_dim]``; a head's keys are ``k_up[h] @ normed``, followed by the shared key.
            v_up: ``[heads, latent_dim, value_dim]``; a head's values are ``normed @ v_up[h]``.

        Returns:
            ``[tokens, heads, value_dim]``.
        """
        q_plain, q_rope = q.split_with_sizes([k_up.shape[1], cos_sin.shape[1]], dim=-1)
        q_rope = write(q_rope, latent, norm_weight, eps, positions, cos_sin, cache, meta)
        query = torch.cat((matmul(q_plain, k_up), q_rope), dim=-1)
        out: Tensor = matmul(attend(query, cache, meta), v_up)
        return out

    return latent_attention


def make_selected_latent_attention(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``selected_latent_attention`` from ``rms_norm``, ``rope_interleaved``, ``per_head_matmul`` and
    ``selected_attention``."""
    norm, rotate = parts["rms_norm"], parts["rope_interleaved"]
    matmul, attend = parts["per_head_matmul"], parts["selected_attention"]

    def selected_latent_attention(
        q: Tensor,
        latent: Tensor,
        norm_weight: Tensor,
        eps: float,
        k_up: Tensor,
        v_up: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        selected: Tensor,
        cache: Tensor,
        step: CacheStep,
        *,
        scale: float,
    ) -> Tensor:
        """``latent_attention`` to the tokens that are ``selected`` for each token.

        Args:
            q, latent, norm_weight, eps, k_up, v_up, positions, cos_sin: as in ``latent_attention``.
            selected, cache, scale: as in ``selected_attention``.

        Returns:
            ``[tokens, heads, value_dim]``.
        """
        rank = norm_weight.shape[0]
        compressed, shared_key = latent.split_with_sizes([rank, cos_sin.shape[1]], dim=1)
        q_plain, q_rope = q.split_with_sizes([k_up.shape[1], cos_sin.shape[1]], dim=-1)
        q_rope, k_rope = rotate(q_rope, shared_key[:, None], positions, cos_sin)
        row = torch.cat((norm(compressed, norm_weight, eps), k_rope[:, 0]), dim=1)
        query = torch.cat((matmul(q_plain, k_up), q_rope), dim=-1)
        return matmul(attend(query, row, selected, cache, step, scale=scale, latent_dim=rank), v_up)

    return selected_latent_attention
