"""Steps that look alike and are not, and sequences and prompts of more than a tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmk.api import AttentionQuery
from llmk.api.cache import SCALED_BITS
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.paged import Paged, Work, decode, history
from llmk_testing.suites.attention_numbers import OF_LOW, go_low
from llmk_testing.watch import poisoned

_LENGTH, _SHORTER, _BEFORE = 2300, 1100, 1000
"""Tokens of sequences: more than two tiles of keys, and more than one, of which the last are before the end of a chunk
of 1,100."""

Given = Callable[..., Paged]
"""Makes requests for a backend of the candidate: ``given(candidate, asked, **options)``."""


def cases(paged: Given) -> dict[str, Callable[..., str | None]]:
    """By name, what holds of a backend and a query."""

    def alike(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Of equal lengths on other blocks, in another order, with tokens that are shared out otherwise, and of a
        request that was preempted and computed again, on other blocks."""
        one = paged(candidate, asked, requests=4, longest=64)
        steps: list[Work] = [
            [(0, 0, 20), (1, 0, 33)],
            [(2, 0, 20), (3, 0, 33)],
            [(0, 20, 21), (1, 33, 34)],
            [(2, 20, 21), (3, 33, 34)],
            [(3, 34, 35), (2, 21, 22)],
            [(0, 21, 24), (1, 34, 35)],
            [(2, 22, 24), (3, 35, 37)],
            [(0, 24, 25), (1, 35, 38)],
        ]
        errors = [one.check(one.play(work), work, "after steps that look alike") for work in steps]
        one.tables[[0, 1]] = one.tables[[1, 0]]
        again: list[Work] = [[(0, 0, 25), (1, 0, 38)], [(0, 25, 26), (1, 38, 39)]]
        errors += [one.check(one.play(work), work, "computed again on other blocks") for work in again]
        return agreeing(errors)

    def drafts(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """All requests compute equally many tokens, a few each, as where drafts are verified; some of them again."""
        one, lengths = paged(candidate, asked, requests=3, longest=64), [17, 2, 31]
        errors = [one.check(one.play(work), work, "the prompts") for work in [history(*lengths)]]
        for count in (2, 3, 4, 5, 7, 8):
            work = [(request, length, length + count) for request, length in enumerate(lengths)]
            errors.append(one.check(one.play(work), work, "of drafts"))
            lengths = [length + 1 + request % count for request, length in enumerate(lengths)]
        return agreeing(errors)

    def writes_elsewhere(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """A fused op, which another instance stands for, writes to the cache in place of ``write``."""
        one = paged(candidate, asked, requests=3, longest=64)
        other, errors = paged(candidate, asked, requests=1, longest=1).backend, []
        for work in (history(20, 1, 33), decode(20, 1, 33), [(0, 21, 30), (2, 34, 36)]):
            q, key, value = one.given(work)
            other.write(key, value, one.cache, other.prepare(one.step(work)), **one.scaled)
            out = one.attend(q, one.backend.prepare(one.step(work)))
            errors.append(one.check(out, work, "of tokens that something else wrote"))
        return agreeing(errors)

    return {
        "steps that look alike are not taken for each other": alike,
        "takes a few tokens of each request": drafts,
        "reads what something else wrote": writes_elsewhere,
    }


def with_each_option(served: Sequence[Asked[AttentionQuery]]) -> list[Asked[AttentionQuery]]:
    """For each option, the served query that has it, and the fewest elements in a token; those in float32 first, in
    which small errors show."""
    kinds: tuple[Callable[[AttentionQuery], bool], ...] = (
        lambda query: query.sinks and not query.sliding_window,
        lambda query: query.sinks and bool(query.sliding_window),
        lambda query: query.alibi and not query.sliding_window,
        lambda query: bool(query.softcap) and not query.sliding_window,
        lambda query: query.chunked and (query.sliding_window or 0) > 1,
        lambda query: (query.sliding_window or 0) > 1 and not query.chunked,
        lambda query: query.cache_dtype.startswith("float8"),
        lambda query: query.cache_dtype in SCALED_BITS,
        lambda query: query.latent_dim is not None,
        lambda query: query.value_dim is not None,
    )
    order = sorted(served, key=lambda asked: (asked.query.dtype != "float32", _elements(asked.query)))
    found = [next((asked for asked in order if kind(asked.query)), None) for kind in kinds]
    return list({asked.label: asked for asked in found if asked is not None}.values())


def _elements(query: AttentionQuery) -> int:
    return query.num_heads * query.head_dim


def takes_many_tiles(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Single tokens, drafts and chunks behind thousands of tokens; all scores of the last request are far below zero,
    and it goes on over the end of the chunks that some queries have."""
    one, errors = paged(candidate, asked, requests=3, longest=_LENGTH + 200), []
    go_low(one, (2,))
    one.write([(0, 0, 1024), (1, 0, _SHORTER), (2, 0, _BEFORE)])
    one.write([(0, 1024, _LENGTH)])
    steps: list[Work] = [
        decode(_LENGTH, _SHORTER, _BEFORE),
        [(0, _LENGTH + 1, _LENGTH + 4), (1, _SHORTER + 1, _SHORTER + 4), (2, _BEFORE + 1, _BEFORE + 4)],
        [(0, _LENGTH + 4, _LENGTH + 150), (1, _SHORTER + 4, _SHORTER + 5), (2, _BEFORE + 4, _BEFORE + 150)],
    ]
    for work in steps:
        with poisoned():
            out = one.play(work)
        ordinary = sum(stop - start for _, start, stop in work[:2])
        errors.append(one.check(out[:ordinary], work[:2], "over many tiles of keys"))
        one.check(out[ordinary:], work[2:], "over many tiles of keys, with scores far below zero", OF_LOW)
    return agreeing(errors)


def takes_long_prompts(paged: Given, candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
    """Two prompts, of which one has more tokens than a launch may have rows."""
    one, work = paged(candidate, asked, requests=2, longest=_LENGTH), history(_LENGTH, 70)
    with poisoned():
        out = one.play(work)
    return f"relative error {one.check(out, work, 'in one step'):.1e}"
