"""Sampling: penalties, bias, truncation, sampling and log-probabilities, for a whole batch at once.

Rows are independent of each other. No function synchronizes with the device, except a shortcut of :func:`sample` that
is only taken on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.sampling.counter_rng import uniform_bits
from llmk.reference.sampling.truncation import Truncation, integer_weights

_SHORTLIST = 512
"""How many of the most likely tokens :func:`sample` tries before it sorts a whole row."""
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
    """Applies repetition, frequency and presence penalties to the logits of tokens that a request already contains, in
    place.

    The repetition penalty (arXiv:1909.05858) is first, over prompt and output: positive logits are divided by it,
    negative ones multiplied. Then OpenAI's penalties, over the output only: subtracts ``frequency`` times the count,
    and ``presence`` once.

    Args:
        logits: float32 ``[R, V]``.
        rows: int64 ``[M]``, one for each request with penalties.
        tokens: int32 ``[slots, L]``, the tokens of each slot; ``L`` is at least the greatest of ``known``. ``V`` stands
            for an embedding in place of a token, which is not counted.
        slots: int64 ``[M]``, the requests' slots.
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
    """Whether ``tokens[slots, starts:ends]`` end with ``suffixes``, such as stop sequences.

    Args:
        tokens: int32 ``[S, L]``.
        slots, starts, ends: int64 ``[W]``.
        suffixes: int64 ``[W, P]``; shorter ones are padded with -1 on the left.

    Returns:
        bool ``[W]``.
    """
    place = ends[:, None] - torch.arange(suffixes.shape[1], 0, -1, device=suffixes.device)
    found = tokens[slots[:, None], place.clamp(min=0)]
    return ((suffixes < 0) | ((found == suffixes) & (place >= starts[:, None]))).all(dim=1)


def allow_tokens(logits: Tensor, rows: Tensor, at: Tensor, ids: Tensor) -> Tensor:
    """Sets ``logits[rows]`` (float32 ``[R, V]``, int64 ``[M]``) to ``-inf`` except ``logits[at, ids]`` (both int64
    ``[N]``), in place, and returns ``logits``."""
    kept = logits[at, ids]
    return logits.index_fill_(0, rows, float("-inf")).index_put_((at, ids), kept)


def apply_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """Sets the logits of tokens that a packed mask excludes to ``-inf``, in place.

    Args:
        logits: float32 ``[R, V]``.
        rows: int64 ``[M]``, the rows that have a mask, each once.
        bits: int32 ``[M, ceil(V / 32)]``; token ``t`` is allowed where bit ``t % 32`` of word ``t // 32`` is 1.

    Returns:
        ``logits``.
    """
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits[:, :, None] >> places) & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill(~allowed, float("-inf"))
    return logits


def mask_top_k_top_p_min_p(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Sets the logits of tokens that top-k, top-p and min-p exclude to ``-inf``. Each row keeps at least its most
    likely token.

    ``top_k`` comes first, then ``top_p`` over the probabilities of the ``top_k`` (arXiv:1904.09751), then ``min_p``
    (arXiv:2407.01082). Probabilities are summed as :func:`sample` rounds them. Tokens exactly as likely as the last
    token kept are kept too, so the result does not depend on the order of ties.

    Args:
        logits: float32 ``[R, V]``, already divided by the temperature.
        top_k: int64 ``[R]``; 0: off.
        top_p: float32 ``[R]``; 1: off.
        min_p: float32 ``[R]``; keeps tokens whose probability is at least ``min_p`` times that of the most likely
            token; 0: off.

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
    """Samples one token per row.

    Rows with temperature 0 take the most likely token, the lowest id among equals. All others sample from the softmax
    of the logits that :func:`mask_top_k_top_p_min_p` keeps, by inverting the cumulative distribution at a uniform
    number that is a hash of ``(seed, position)``. Weights are rounded to integers before they are summed, so the sum
    does not depend on the order of addition: a row returns the same token in any batch, and on any device whose ``exp``
    rounds the same way. Tokens whose probability is below 2**-25 times that of the most likely token are never sampled.

    Args:
        logits: ``[R, V]``, ``V <= 2**18``, any floating dtype, computed with in float32; not changed.
        temperature: float32 ``[R]``; ``None``: all rows are greedy, and all other arguments are ignored.
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
    """Natural-log probabilities of the sampled tokens and of the most likely tokens.

    Args:
        logits: ``[R, V]``, raw, any floating dtype, computed with in float32.
        token_ids: int64 ``[R]``.
        num_top: how many of the most likely tokens to return; 0: none.

    Returns:
        ``logprob`` float32 ``[R]``; ``rank`` int64 ``[R]``, 1 more than the number of tokens that are more likely, so
        equal tokens share a rank; ``top_ids`` int64 and ``top_logprobs`` float32 ``[R, num_top]``, most likely first,
        and the lower id first among equals.
    """
    logits = logits.float()
    normalised = torch.log_softmax(logits, dim=-1)
    chosen = logits.gather(1, token_ids[:, None])
    rank = (logits > chosen).sum(dim=-1) + 1
    top_ids = _most_likely(logits, min(num_top, logits.shape[1]))
    logprob = normalised.gather(1, token_ids[:, None]).squeeze(1)
    return logprob, rank, top_ids, normalised.gather(1, top_ids)


def _count(tokens: Tensor, prompt_lengths: Tensor, known: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Whether each token occurs in the prompt (bool ``[M, V]``), and how often in the output (int32 ``[M, V]``);
    ``tokens`` is int32 ``[M, L]``."""
    column = torch.arange(tokens.shape[1], device=tokens.device)
    in_prompt = column < prompt_lengths[:, None]
    in_output = (column < known[:, None]) & ~in_prompt
    counts = torch.zeros(2, tokens.shape[0], vocab + 1, dtype=torch.int32, device=tokens.device)
    for count, counted in zip(counts, (in_prompt, in_output), strict=True):
        count.scatter_add_(1, tokens.to(torch.int64), counted.to(torch.int32))
    return counts[0, :, :vocab] > 0, counts[1, :, :vocab]


def _sample_truncated(logits: Tensor, truncation: Truncation, seeds: Tensor, positions: Tensor) -> Tensor:
    """Samples from the truncated ``logits`` (float32 ``[R, V]`` whose greatest element is 0)."""
    if not truncation.off:
        logits = logits.masked_fill(logits < truncation.floor(logits)[:, None], float("-inf"))
    return _sample_by_inversion(logits, seeds, positions)


def _sample_by_shortlist(
    logits: Tensor, best: Tensor, divisor: Tensor, truncation: Truncation, seeds: Tensor, positions: Tensor
) -> Tensor:
    """:func:`_sample_truncated` of ``(logits - best) / divisor``, which first tries only each row's most likely tokens.

    On the CPU, sorting a row of a large vocabulary may take longer than a small model's forward pass, and finding the
    rows that need no sort is cheap. Tokens are in the order of their ids here too, so the result is the same.
    """
    vocab = logits.shape[1]
    values, ids = logits.topk(_SHORTLIST, dim=-1)
    values = (values - best) / divisor
    ids, order = ids.sort(dim=-1)
    total = None
    if truncation.top_p is not None:
        total = integer_weights((logits - best).div_(divisor)).sum(dim=-1)
    floor = truncation.floor_of_sorted(values, vocab, total)
    kept = values.masked_fill(values < floor[:, None], float("-inf")).gather(1, order)
    tokens = ids.gather(1, _sample_by_inversion(kept, seeds, positions)[:, None]).squeeze(1)
    untouched = torch.isneginf(floor)
    unsettled = (floor <= values[:, -1]) & ~untouched
    for mask, cut in ((untouched, Truncation(None, None, None)), (unsettled, truncation)):
        rows = mask.nonzero().squeeze(1)
        if rows.numel():
            scaled = (logits[rows] - best[rows]).div_(divisor[rows])
            tokens[rows] = _sample_truncated(scaled, cut.of(rows), seeds[rows], positions[rows])
    return tokens


def _most_likely(logits: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` greatest logits, int64 ``[R, count]``. Among equal logits, lower ids come first and are
    preferred; ``topk`` guarantees neither."""
    if count == 0:
        return torch.empty(logits.shape[0], 0, dtype=torch.int64, device=logits.device)
    last = logits.topk(count, dim=-1).values[:, -1:]
    ids = torch.arange(logits.shape[1], dtype=torch.float32, device=logits.device)
    key = torch.where(logits == last, -ids, torch.where(logits > last, 1.0, float("-inf")))
    chosen = key.topk(count, dim=-1).indices.sort(dim=-1).values
    order = logits.gather(1, chosen).sort(dim=-1, descending=True, stable=True).indices
    return chosen.gather(1, order)


def _sample_by_inversion(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Inverts each row's cumulative distribution at its uniform number, in integers; the greatest element of ``logits``
    is 0.

    The uniform number has 40 bits and the total fewer than 42, so they are multiplied in two halves to stay within 63
    bits.
    """
    cumulative = integer_weights(logits).cumsum_(dim=-1)
    total = cumulative[:, -1]
    bits = uniform_bits(seeds, positions, 2 * _HALF)
    high, low = bits >> _HALF, bits & _HALF_MASK
    target = (high * total + ((low * total) >> _HALF)) >> _HALF
    chosen = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)
    # Logits with NaN have no distribution; the id must still be valid, because the next step embeds it.
    return chosen.clamp(max=logits.shape[1] - 1)
