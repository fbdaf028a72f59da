"""Sequences as long as a query's ``max_seq_len``, far beyond what others are tried with."""

from __future__ import annotations

from dataclasses import replace

from llmk.api import AttentionQuery
from llmk.api.matching import match
from llmk_testing.candidate import Asked, Candidate
from llmk_testing.paged import Paged
from llmk_testing.tolerance import BOUNDS, Bound

LENGTHS = (1 << 16, 140_000, 1 << 20, 1 << 27, 1 << 31)
"""Longest sequences of the queries that get verdicts, in tokens."""
_LENGTH = 140_000
"""Tokens of the sequence that is tried: more than 16 bits count."""

_LOOSER = 16
"""Factor of the bounds: of so many values most cancel, and the errors of their sum do not."""


def least(candidate: Candidate[AttentionQuery]) -> list[Asked[AttentionQuery]]:
    """The served query without a window whose tokens have the fewest elements."""
    whole = [asked for asked in candidate.served if not asked.query.sliding_window]
    return sorted(whole, key=lambda asked: asked.query.num_heads * asked.query.head_dim)[:1]


def refuses_all_that_are_longer(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """A kernel that refuses a length refuses all that are longer."""
    served = [bool(match(candidate.spec, replace(asked.query, max_seq_len=length))) for length in LENGTHS]
    for length, ok, following in zip(LENGTHS, served, served[1:], strict=False):
        assert ok or not following, f"it refuses sequences of {length:,} tokens, and takes longer ones"
    taken = [length for length, ok in zip(LENGTHS, served, strict=True) if ok]
    return f"up to {taken[-1]:,} tokens or more" if taken else f"less than {LENGTHS[0]:,} tokens"


def reads_the_longest(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """The last tokens of a sequence whose blocks come again and again, so that it needs little memory."""
    query, size = replace(asked.query, max_seq_len=_LENGTH), asked.query.block_size
    if not match(candidate.spec, query):
        return f"it refuses sequences of {_LENGTH:,} tokens"
    backend = candidate.load(candidate.spec.implementation)(query, candidate.bench.device)
    random, period = candidate.bench.random("attention", asked.label), 64 * size
    paged = Paged(query, backend, candidate.bench.device, random, requests=1, longest=period)
    paged.write([(0, 0, period)])
    times = -(-_LENGTH // period)
    paged.tables = paged.tables.repeat(1, times)
    paged.rows = paged.rows.repeat(1, times, 1)
    paged.kept = [kept.repeat(1, times, 1, 1) for kept in paged.kept]
    errors = []
    for count in (1, 3):
        work = [(0, _LENGTH - count, _LENGTH)]
        out = paged.play(work)
        bound = Bound(_LOOSER * BOUNDS[out.dtype].norm, _LOOSER * BOUNDS[out.dtype].largest)
        errors.append(paged.check(out, work, f"of a sequence of {_LENGTH:,} tokens", bound))
    return f"relative error {max(errors):.1e}"


CASES = {
    "refuses all sequences that are longer than one it refuses": refuses_all_that_are_longer,
    "reads the longest sequences that it accepts": reads_the_longest,
}
