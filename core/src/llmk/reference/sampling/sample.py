"""Choosing tokens: penalties, bias, truncation, sampling and log-probabilities, for a whole batch at once.

Every row depends on itself alone. No function waits for the device, but for one shortcut of :func:`sample` that is
taken where waiting is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.sampling.counter_rng import uniform_bits
from llmk.reference.sampling.truncation import Truncation, weigh

_SHORTLIST = 512
"""Likeliest tokens among which :func:`sample` looks for the last one to keep before it sorts a whole row."""
_HALF = 20
_HALF_MASK = (1 << _HALF) - 1


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    tokens: Tensor,
    slots: Tensor,
    prompt_lengths: Tensor,
    known: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> Tensor:
    """Lowers, in place, the logits of tokens that requests have already seen.

    Repetition (arXiv:1909.05858) first, over prompt and output: positive logits are divided, negative ones
    multiplied. Then OpenAI's two, over the output alone: ``frequency`` times the count, and ``presence`` once.

    Args:
        logits: float32 ``[R, V]``.
        rows: int64 ``[M]``, one for each request with penalties.
        tokens: int32 ``[slots, L]``, what stands in each slot, ``L`` at least the greatest of ``known``.
        slots: int64 ``[M]``, the requests'.
        prompt_lengths, known: int64 ``[M]``; a slot's tokens before ``prompt_lengths`` are its prompt, those from there
            to ``known - 1`` its output.
        presence, frequency, repetition: float32 ``[M]``; 0, 0 and 1 change nothing.

    Returns:
        ``logits``.
    """
    in_prompt, counts = _count(tokens[slots], prompt_lengths, known, logits.shape[1])
    in_output = counts > 0
    factor = torch.where(in_prompt | in_output, repetition[:, None], 1.0)
    lowered = logits[rows]
    lowered = torch.where(lowered > 0, lowered / factor, lowered * factor)
    logits[rows] = lowered - frequency[:, None] * counts - presence[:, None] * in_output
    return logits


def apply_bias(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Adds ``values`` (float32 ``[N]``) to ``logits[rows, ids]`` (both int64 ``[N]``), in place, and returns
    ``logits`` (float32 ``[R, V]``)."""
    return logits.index_put_((rows, ids), values, accumulate=True)


def match_suffixes(tokens: Tensor, slots: Tensor, starts: Tensor, ends: Tensor, suffixes: Tensor) -> Tensor:
    """Whether ``tokens[slots, starts:ends]`` end with given sequences.

    Args:
        tokens: int32 ``[S, L]``.
        slots, starts, ends: int64 ``[W]``.
        suffixes: int64 ``[W, P]``; shorter ones have -1 on the left.

    Returns:
        bool ``[W]``.
    """
    place = ends[:, None] - torch.arange(suffixes.shape[1], 0, -1, device=suffixes.device)
    found = tokens[slots[:, None], place.clamp(min=0)]
    return ((suffixes < 0) | ((found == suffixes) & (place >= starts[:, None]))).all(dim=1)


def allow_tokens(logits: Tensor, rows: Tensor, at: Tensor, ids: Tensor) -> Tensor:
    """Sets all of ``logits[rows]`` (float32 ``[R, V]``, int64 ``[M]``) to ``-inf`` but ``logits[at, ids]`` (both int64
    ``[N]``), in place, and returns ``logits``."""
    kept = logits[at, ids]
    return logits.index_fill_(0, rows, float("-inf")).index_put_((at, ids), kept)


def mask_top_k_top_p_min_p(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Sets to ``-inf`` what sampling must not choose. Each row keeps at least its likeliest token.

    ``top_k`` comes first, then ``top_p`` over the probabilities of the ``top_k`` (arXiv:1904.09751), then ``min_p``
    (arXiv:2407.01082). Probabilities are added up as :func:`sample` rounds them. Tokens exactly as likely as the last
    one kept are kept with it, so no result depends on how ties are sorted.

    Args:
        logits: float32 ``[R, V]``, already divided by the temperature.
        top_k: int64 ``[R]``; 0: off.
        top_p: float32 ``[R]``; 1: off.
        min_p: float32 ``[R]``; keeps tokens at least this times as likely as the likeliest; 0: off.

    Returns:
        A new float32 ``[R, V]``. Arguments that are ``None`` are off for all rows.
    """
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    floor = Truncation(top_k, top_p, min_p).floor(shifted)
    return logits.masked_fill(shifted < floor[:, None], float("-inf"))


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
        logits: ``[R, V]``, ``V <= 2**18``, any floating dtype, computed with in float32; not changed.
        temperature: float32 ``[R]``; ``None``: all rows are greedy, and nothing else is looked at.
        top_k, top_p, min_p: as in :func:`mask_top_k_top_p_min_p`.
        seeds, positions: int64 ``[R]``; needed unless ``temperature`` is ``None``.

    Returns:
        int64 ``[R]``.
    """
    greedy = logits.argmax(dim=-1)
    if temperature is None or seeds is None or positions is None:
        return greedy
    logits = logits.float()
    is_greedy = temperature == 0
    divisor = torch.where(is_greedy, 1.0, temperature)[:, None]
    best = logits.gather(1, greedy[:, None])
    truncation = Truncation(top_k, top_p, min_p)
    if logits.device.type == "cpu" and logits.shape[1] > 2 * _SHORTLIST and not truncation.off:
        tokens = _sample_by_shortlist(logits, best, divisor, truncation, seeds, positions)
    else:
        tokens = _sample_truncated((logits - best).div_(divisor), truncation, seeds, positions)
    return torch.where(is_greedy, greedy, tokens)


def logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Natural-log probabilities of chosen tokens, and the likeliest tokens beside them.

    Args:
        logits: ``[R, V]``, raw, any floating dtype, computed with in float32.
        token_ids: int64 ``[R]``.
        num_top: how many of the likeliest tokens to return; 0: none.

    Returns:
        ``logprob`` float32 ``[R]``; ``rank`` int64 ``[R]``, 1 more than the number of likelier tokens, so equals
        share a rank; ``top_ids`` int64 and ``top_logprobs`` float32 ``[R, num_top]``, likeliest first and of equals
        the lower id first.
    """
    logits = logits.float()
    normalised = torch.log_softmax(logits, dim=-1)
    chosen = logits.gather(1, token_ids[:, None])
    rank = (logits > chosen).sum(dim=-1) + 1
    top_ids = _likeliest(logits, min(num_top, logits.shape[1]))
    logprob = normalised.gather(1, token_ids[:, None]).squeeze(1)
    return logprob, rank, top_ids, normalised.gather(1, top_ids)


def _count(tokens: Tensor, prompt_lengths: Tensor, known: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Which tokens stand in each prompt (bool ``[M, V]``), and how often each stands in the output (int32 ``[M, V]``);
    ``tokens`` is int32 ``[M, L]``."""
    column = torch.arange(tokens.shape[1], device=tokens.device)
    in_prompt = column < prompt_lengths[:, None]
    in_output = (column < known[:, None]) & ~in_prompt
    counts = torch.zeros(2, tokens.shape[0], vocab, dtype=torch.int32, device=tokens.device)
    for count, counted in zip(counts, (in_prompt, in_output), strict=True):
        count.scatter_add_(1, tokens.to(torch.int64), counted.to(torch.int32))
    return counts[0] > 0, counts[1]


def _sample_truncated(logits: Tensor, truncation: Truncation, seeds: Tensor, positions: Tensor) -> Tensor:
    """Draws from what truncation leaves of ``logits`` (float32 ``[R, V]`` with a greatest element of 0)."""
    if not truncation.off:
        logits = logits.masked_fill(logits < truncation.floor(logits)[:, None], float("-inf"))
    return _draw(logits, seeds, positions)


def _sample_by_shortlist(
    logits: Tensor, best: Tensor, divisor: Tensor, truncation: Truncation, seeds: Tensor, positions: Tensor
) -> Tensor:
    """:func:`_sample_truncated` of ``(logits - best) / divisor``, first among each row's likeliest tokens alone.

    On the host, sorting a row of a large vocabulary takes longer than many a model's forward pass, and asking which
    rows can do without costs nothing. Tokens come in the order of their ids here too, so the answer is the same.
    """
    vocab = logits.shape[1]
    values, ids = logits.topk(_SHORTLIST, dim=-1)
    values = (values - best) / divisor
    ids, order = ids.sort(dim=-1)
    total = None
    if truncation.top_p is not None:
        total = weigh((logits - best).div_(divisor)).sum(dim=-1)
    floor = truncation.floor_of_sorted(values, vocab, total)
    kept = values.masked_fill(values < floor[:, None], float("-inf")).gather(1, order)
    tokens = ids.gather(1, _draw(kept, seeds, positions)[:, None]).squeeze(1)
    untouched = torch.isneginf(floor)
    unsettled = (floor <= values[:, -1]) & ~untouched
    for wanted, cut in ((untouched, Truncation(None, None, None)), (unsettled, truncation)):
        rows = wanted.nonzero().squeeze(1)
        if rows.numel():
            scaled = (logits[rows] - best[rows]).div_(divisor[rows])
            tokens[rows] = _sample_truncated(scaled, cut.of(rows), seeds[rows], positions[rows])
    return tokens


def _likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` greatest logits, int64 ``[R, count]``. Of equals the lower id comes first, and is taken
    first where not all have room: ``topk`` promises neither."""
    if count == 0:
        return torch.empty(logits.shape[0], 0, dtype=torch.int64, device=logits.device)
    last = logits.topk(count, dim=-1).values[:, -1:]
    ids = torch.arange(logits.shape[1], dtype=torch.float32, device=logits.device)
    key = torch.where(logits == last, -ids, torch.where(logits > last, 1.0, float("-inf")))
    chosen = key.topk(count, dim=-1).indices.sort(dim=-1).values
    order = logits.gather(1, chosen).sort(dim=-1, descending=True, stable=True).indices
    return chosen.gather(1, order)


def _draw(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Inverts each row's cumulative distribution at its own uniform number, in integers; ``logits`` have a greatest
    element of 0.

    The uniform has 40 bits and the total less than 42, so their product is formed in two halves to stay within 63 bits.
    """
    cumulative = weigh(logits).cumsum_(dim=-1)
    total = cumulative[:, -1]
    bits = uniform_bits(seeds, positions, 2 * _HALF)
    high, low = bits >> _HALF, bits & _HALF_MASK
    target = (high * total + ((low * total) >> _HALF)) >> _HALF
    chosen = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)
    # Logits that are not numbers have no distribution; the id must still be one that the next step can look up.
    return chosen.clamp(max=logits.shape[1] - 1)
