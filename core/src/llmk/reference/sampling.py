"""Choosing tokens: penalties, bias, truncation, sampling and log-probabilities, for a whole batch at once.

Every row depends on itself alone. No function waits for the device, but for one shortcut that is taken where
waiting is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.counter_rng import uniform_bits

_SHORTLIST = 512
"""Likeliest tokens that are looked at before a whole row is sorted."""
_WEIGHT_BITS = 24
"""The likeliest token weighs 2**24. With up to 2**18 tokens a row's weights then add up to less than 2**42: see
:func:`_draw`."""
_HALF = 20
_HALF_MASK = (1 << _HALF) - 1


def apply_penalties(
    logits: Tensor, prompt_mask: Tensor, output_counts: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> Tensor:
    """Lowers the logits of tokens that have already been seen.

    Repetition (arXiv:1909.05858) first, over prompt and output: positive logits are divided, negative ones
    multiplied. Then OpenAI's two, over the output alone: ``frequency`` times the count, and ``presence`` once.

    Args:
        logits: float32 ``[R, V]``.
        prompt_mask: bool ``[R, V]``, tokens that stand in the prompt.
        output_counts: int32 ``[R, V]``, how often each stands in the output.
        presence, frequency, repetition: float32 ``[R]``; 0, 0 and 1 change nothing.

    Returns:
        A new float32 ``[R, V]``.
    """
    in_output = output_counts > 0
    factor = torch.where(prompt_mask | in_output, repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    return logits - frequency[:, None] * output_counts - presence[:, None] * in_output


def apply_bias(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Adds ``values`` (float32 ``[N]``) to ``logits[rows, ids]`` (both int64 ``[N]``), in place, and returns
    ``logits`` (float32 ``[R, V]``)."""
    return logits.index_put_((rows, ids), values, accumulate=True)


def mask_top_k_top_p_min_p(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Sets to ``-inf`` what sampling must not choose. Each row keeps at least its likeliest token.

    ``top_k`` comes first, then ``top_p`` over the probabilities of the ``top_k`` (arXiv:1904.09751), then ``min_p``
    (arXiv:2407.01082). Tokens exactly as likely as the last one kept are kept with it, so no result depends on how
    ties are sorted.

    Args:
        logits: float32 ``[R, V]``, already divided by the temperature.
        top_k: int64 ``[R]``; 0: off.
        top_p: float32 ``[R]``; 1: off.
        min_p: float32 ``[R]``; keeps tokens at least this times as likely as the likeliest; 0: off.

    Returns:
        A new float32 ``[R, V]``. Arguments that are ``None`` are off for all rows.
    """
    best = logits.amax(dim=-1)
    floor = torch.full_like(best, float("-inf"))
    if top_k is not None or top_p is not None:
        floor = _nucleus_floor(logits, best, top_k, top_p)
    if min_p is not None:
        floor = torch.maximum(floor, best + torch.log(min_p))
    return logits.masked_fill(logits < torch.minimum(floor, best)[:, None], float("-inf"))


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """Chooses one token per row.

    Rows of temperature 0 take the likeliest token, the first of equals. All others draw from the softmax of what
    :func:`mask_top_k_top_p_min_p` leaves, by inverting the cumulative distribution at one uniform number that is a
    hash of ``(seed, position)``. Weights are rounded to integers before they are summed, so the sum doesn't depend
    on the order of adding: a row gives the same token in any batch, and on any device whose ``exp`` rounds alike.
    Tokens less likely than 2**-25 times the likeliest are never drawn.

    Args:
        logits: float32 ``[R, V]``, ``V <= 2**18``; not changed.
        temperature: float32 ``[R]``; ``None``: all rows are greedy, and nothing else is looked at.
        top_k, top_p, min_p: as in :func:`mask_top_k_top_p_min_p`.
        seeds, positions: int64 ``[R]``; needed unless ``temperature`` is ``None``.

    Returns:
        int64 ``[R]``.
    """
    greedy = logits.argmax(dim=-1)
    if temperature is None or seeds is None or positions is None:
        return greedy
    is_greedy = temperature == 0
    best = logits.gather(1, greedy[:, None])
    scaled = (logits - best) / torch.where(is_greedy, 1.0, temperature)[:, None]
    if top_k is not None or top_p is not None or min_p is not None:
        scaled = mask_top_k_top_p_min_p(scaled, top_k, top_p, min_p)
    return torch.where(is_greedy, greedy, _draw(scaled, seeds, positions))


def logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Natural-log probabilities of chosen tokens, and the likeliest tokens beside them.

    Args:
        logits: float32 ``[R, V]``, raw.
        token_ids: int64 ``[R]``.
        num_top: how many of the likeliest tokens to return; 0: none.

    Returns:
        ``logprob`` float32 ``[R]``; ``rank`` int64 ``[R]``, 1 more than the number of likelier tokens, so equals
        share a rank; ``top_ids`` int64 and ``top_logprobs`` float32 ``[R, num_top]``, likeliest first and of equals
        the lower id first.
    """
    normalised = torch.log_softmax(logits, dim=-1)
    chosen = logits.gather(1, token_ids[:, None])
    rank = (logits > chosen).sum(dim=-1) + 1
    top_ids = _ordered_keys(logits).topk(min(num_top, logits.shape[1]), dim=-1).indices
    logprob = normalised.gather(1, token_ids[:, None]).squeeze(1)
    return logprob, rank, top_ids, normalised.gather(1, top_ids)


def _ordered_keys(logits: Tensor) -> Tensor:
    """int64 keys that sort like float32 ``logits``, with no two equal in a row: of equal logits the lower id has
    the greater key."""
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return ordered * (1 << 31) - torch.arange(logits.shape[1], device=logits.device)


def _nucleus_floor(logits: Tensor, best: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """The least logit that top-k and top-p keep, float32 ``[R]``."""
    vocab = logits.shape[1]
    weights = torch.exp(logits - best[:, None])
    total = weights.sum(dim=-1)
    if logits.device.type == "cpu" and vocab > 2 * _SHORTLIST:
        # Sorting a whole row takes longer than many a model's forward pass, and asking whether it can be spared costs
        # nothing here.
        floor, settled = _floor_of_sorted(logits.topk(_SHORTLIST, dim=-1).values, total, vocab, top_k, top_p)
        if bool(settled.all()):
            return floor
    return _floor_of_sorted(logits.sort(dim=-1, descending=True).values, total, vocab, top_k, top_p)[0]


def _floor_of_sorted(
    values: Tensor, total: Tensor, vocab: int, top_k: Tensor | None, top_p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Finds the floor among each row's likeliest logits.

    Args:
        values: float32 ``[R, K]``, the ``K`` greatest logits, descending.
        total: float32 ``[R]``, sum of ``exp(logit - best)`` over the whole row.

    Returns:
        ``floor`` float32 ``[R]``, and bool ``[R]``: whether the floor lies within ``values``, so that it is final.
    """
    listed = values.shape[1]
    kept = torch.full_like(total, vocab, dtype=torch.int64)
    if top_k is not None:
        kept = torch.where(top_k > 0, top_k, kept).clamp(max=vocab)
    settled = kept <= listed
    if top_p is not None:
        weights = torch.exp(values - values[:, :1])
        cumulative = weights.cumsum(dim=-1)
        mass = torch.where(kept < vocab, cumulative.gather(1, kept.clamp(max=listed)[:, None] - 1).squeeze(1), total)
        limit = top_p * mass
        nucleus = (cumulative - weights < limit[:, None]).sum(dim=-1).clamp(min=1)
        complete = (nucleus < listed) | (listed == vocab)
        off = top_p >= 1
        settled = torch.where(off, settled, torch.where(kept < vocab, settled, complete))
        kept = torch.where(off, kept, torch.minimum(kept, nucleus))
    floor = values.gather(1, kept.clamp(max=listed)[:, None] - 1).squeeze(1)
    unlimited = kept == vocab
    return torch.where(unlimited, float("-inf"), floor), settled | unlimited


def _draw(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Inverts each row's cumulative distribution at its own uniform number, in integers.

    The uniform has 40 bits and the total less than 42, so their product is formed in two halves to stay within 63 bits.
    """
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True)).mul_(1 << _WEIGHT_BITS).round_().to(torch.int64)
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1]
    bits = uniform_bits(seeds, positions, 2 * _HALF)
    high, low = bits >> _HALF, bits & _HALF_MASK
    target = (high * total + ((low * total) >> _HALF)) >> _HALF
    chosen = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)
    # Logits that are not numbers have no distribution; the id must still be one that the next step can look up.
    return chosen.clamp(max=logits.shape[1] - 1)
