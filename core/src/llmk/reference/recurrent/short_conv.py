"""The short causal convolution as an op by itself."""

from __future__ import annotations

from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.recurrent.causal_conv import causal_conv
from llmk.reference.recurrent.tails import with_accepted


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    caches: tuple[Tensor, ...],
    step: CacheStep,
    *,
    gated: bool = False,
    activation: str = "",
) -> Tensor:
    """:func:`~llmk.reference.recurrent.causal_conv.causal_conv` of channels (LFM2, arXiv:2511.23404; Mamba,
    arXiv:2312.00752). Batch-invariant.

    Args:
        x: ``[tokens, channels]``, which may be a part of wider rows; with ``gated``, ``[tokens, 3 * channels]``: two
            gates, and the channels. The first gate multiplies the channels, which are rounded to ``x``'s dtype; the
            second multiplies the rounded result.
        weight: ``[channels, k]``.
        bias: ``[channels]`` or ``None``.
        caches: ``[num_blocks, k - 1, channels]`` in ``x``'s dtype, a request's last inputs, the oldest first; read and
            written in place. With drafts, also the tail of the inputs (:class:`~llmk.api.DraftTails`).
        activation: ``"silu"``, or empty.

    Returns:
        ``[tokens, channels]`` in ``x``'s dtype; rows of padding are zeros.
    """
    rows = after = None
    if gated:
        before, after, x = x.chunk(3, dim=1)
        x = before * x
    if step.tails is not None:
        (x,), step, rows = with_accepted((x,), caches[1:], step)
    y = causal_conv(x, weight, bias, caches[0], step, activation=activation or None)
    y = y if rows is None else y[rows]
    return y if after is None else after * y
