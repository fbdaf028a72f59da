"""Composite ops: a recurrent layer without its input and output projections."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.pointwise import sigmoid, silu, softplus
from llmk.reference.recurrent.tails import with_accepted


def make_state_space_mixer(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``state_space_mixer`` from ``causal_conv``, ``state_space_scan`` and ``gated_rms_norm``."""
    conv, scan, norm = parts["causal_conv"], parts["state_space_scan"], parts["gated_rms_norm"]

    def state_space_mixer(
        projected: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        a: Tensor,
        d: Tensor,
        dt_bias: Tensor,
        dt_limits: tuple[float, float | None],
        norm_weight: Tensor | None,
        eps: float,
        caches: tuple[Tensor, ...],
        step: CacheStep,
        *,
        gating: str = "gate_first",
    ) -> Tensor:
        """Convolution, selective scan, gate and norm (Mamba-2, arXiv:2405.21060).

        Args:
            projected: ``[tokens, inner + channels + heads]`` with ``inner = heads * head_dim`` and ``channels = inner +
                2 * groups * state_size``: the gate, the channels of the convolution (input, then B, then C), and the
                step sizes.
            conv_weight: ``[channels, k]``; ``conv_bias``: ``[channels]`` or ``None``.
            a, d, dt_bias, dt_limits: as in :func:`~llmk.reference.recurrent.state_space_scan.state_space_scan`.
            norm_weight: ``[inner]``; each group has its own norm. ``None`` with ``"gate_only"``.
            caches: those of the convolution, ``[num_blocks, k - 1, channels]``, and of the scan, ``[num_blocks,
                heads, head_dim, state_size]``; read and written in place. With drafts, also the tails of the channels
                and step sizes (:class:`~llmk.api.DraftTails`).
            gating: whether the result is gated before its norm (``"gate_first"``), after it (``"norm_first"``), or not
                normed at all (``"gate_only"``); always in float32.

        Returns:
            ``[tokens, inner]``.
        """
        _, heads, head_dim, state_size = caches[1].shape
        inner, channels = heads * head_dim, conv_weight.shape[0]
        gate, mixed, dt = projected.split_with_sizes((inner, channels, heads), 1)
        rows = None
        if step.tails is not None:
            (mixed, dt), step, rows = with_accepted((mixed, dt), caches[2:], step)
        mixed = conv(mixed, conv_weight, conv_bias, caches[0], step, activation="silu")
        wide = (channels - inner) // 2
        x, b, c = mixed.split_with_sizes((inner, wide, wide), 1)
        x, b, c = x.unflatten(1, (heads, -1)), b.unflatten(1, (-1, state_size)), c.unflatten(1, (-1, state_size))
        y = scan(x, dt, a, b, c, d, dt_bias, dt_limits, caches[1], step).flatten(1)
        y = y if rows is None else y[rows]
        if norm_weight is None:
            return (y.float() * silu(gate.float())).to(y.dtype)
        return norm(y, gate, norm_weight, eps, groups=b.shape[1], norm_before_gate=gating == "norm_first")

    return state_space_mixer


def make_lightning_attention(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``lightning_attention`` from ``state_space_scan``, of which it is a case."""
    scan = parts["state_space_scan"]

    def lightning_attention(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, caches: tuple[Tensor, ...], step: CacheStep
    ) -> Tensor:
        """Lightning attention (arXiv:2405.17381), linear attention with constant decays, in float32: ``S = exp(decay) *
        S + v k^T``, ``y = S q``, of queries, keys and values that pass SiLU first.

        Args:
            q, k, v: ``[tokens, heads, head_dim]``; dimensions of a head are contiguous, others have any strides.
            decay: float32 ``[heads]``, log decays, negative.
            caches: the states, ``[num_blocks, heads, head_dim, head_dim]``, values by keys, of any floating dtype, read
                and written in place. With drafts, also the tails of queries, keys and values
                (:class:`~llmk.api.DraftTails`).

        Returns:
            ``[tokens, heads * head_dim]`` in ``v``'s dtype; rows of padding are zeros.
        """
        rows, heads = None, q.shape[1:]
        given = [part.flatten(1) for part in (q, k, v)]
        if step.tails is not None:
            given, step, rows = with_accepted(given, caches[1:], step)
        q, k, v = (silu(part.float()).to(part.dtype).unflatten(1, heads) for part in given)
        nothing, constant = v.new_zeros(v.shape[:2]), torch.zeros_like(decay)
        y = scan(v, nothing, decay, k, q, constant, constant, (1.0, 1.0), caches[0], step).flatten(1)
        return y if rows is None else y[rows]

    return lightning_attention


def make_gated_delta_net(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``gated_delta_net`` from ``causal_conv``, ``gated_delta_rule`` and ``gated_rms_norm``."""
    conv, rule, norm = parts["causal_conv"], parts["gated_delta_rule"], parts["gated_rms_norm"]

    def gated_delta_net(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        a: Tensor,
        b: Tensor,
        conv_weight: Tensor,
        decay: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        eps: float,
        caches: tuple[Tensor, ...],
        step: CacheStep,
        *,
        gate_activation: str = "silu",
        decay_bound: float | None = None,
    ) -> Tensor:
        """Convolution, gated delta rule, norm and gate (Gated DeltaNet, arXiv:2412.06464; KDA, arXiv:2510.26692).

        Queries to ``b`` are parts of what the layer projects, as they lie there: dimensions of a head, and those of the
        heads that share a key head, are contiguous, all others have any strides.

        Args:
            q, k: ``[tokens, key_heads, key_dim]``.
            v, gate: ``[tokens, key_heads, heads / key_heads, value_dim]``.
            a: ``[tokens, key_heads, heads / key_heads]``, or with a decay for each element of a key ``[tokens,
                key_heads, heads / key_heads, key_dim]``; log decays are ``decay * softplus(a + dt_bias)``, or with a
                ``decay_bound`` ``decay_bound * sigmoid(-decay * (a + dt_bias))``.
            b: ``[tokens, key_heads, heads / key_heads]``; the ``beta`` of the delta rule is ``sigmoid(b)``.
            conv_weight: ``[channels, k]`` with ``channels = 2 * key_heads * key_dim + heads * value_dim``: queries,
                then keys, then values.
            decay, dt_bias: ``[heads]``; ``decay`` is negative. ``dt_bias`` is ``[heads, key_dim]`` with as many decays.
            norm_weight: ``[value_dim]``; each head is normed before it is gated, by ``gate_activation`` of the gate.
            caches: those of the convolution, ``[num_blocks, k - 1, channels]``, and of the rule, ``[num_blocks,
                heads, value_dim, key_dim]``; read and written in place. With drafts, also the tails of the channels,
                ``a`` and ``b`` (:class:`~llmk.api.DraftTails`).

        Returns:
            ``[tokens, heads * value_dim]``.
        """
        _, heads, value_dim, key_dim = caches[1].shape
        rows: Tensor | slice = slice(None)
        mixed, a, b = torch.cat([part.flatten(1) for part in (q, k, v)], 1), a.flatten(1), b.flatten(1)
        if step.tails is not None:
            (mixed, a, b), step, rows = with_accepted((mixed, a, b), caches[2:], step)
        mixed = conv(mixed, conv_weight, None, caches[0], step, activation="silu")
        keys, values = (mixed.shape[1] - heads * value_dim) // 2, heads * value_dim
        q, k, v = mixed.split_with_sizes((keys, keys, values), 1)
        q, k, v = q.unflatten(1, (-1, key_dim)), k.unflatten(1, (-1, key_dim)), v.unflatten(1, (heads, -1))
        g = _log_decays(a.unflatten(1, dt_bias.shape).float() + dt_bias, decay, decay_bound)
        y = rule(q, k, v, g, sigmoid(b.float()), caches[1], step)[rows]
        options = {"gate_activation": gate_activation} if gate_activation != "silu" else {}
        return norm(y, gate.flatten(1, 2), norm_weight, eps, groups=1, norm_before_gate=True, **options).flatten(1)

    return gated_delta_net


def _log_decays(given: Tensor, rate: Tensor, bound: float | None) -> Tensor:
    """Of each head, or of each element of its keys; ``given`` is ``[tokens, heads, ...]``, ``rate`` ``[heads]``."""
    rate = rate.view(-1, *[1] * (given.dim() - 2))
    return rate * softplus(given) if bound is None else bound * sigmoid(-rate * given)
