"""Examples for the conformance kit."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import SpeculatorContext
from llmk_testing.speculator_examples import Draft, SpeculatorExamples

from .swift_options import Options

LEASES = {
    "lease_folder": "/tmp/llmk-delta-leases",
    "islands": [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9", "10", "11"], ["12", "13", "14", "15"]],
}


def backoff(context: SpeculatorContext) -> Draft:
    """Looks for each context in the whole text again."""
    options = Options.model_validate(dict(context.options))
    longest, shortest = options.backoff_longest, options.backoff_shortest

    def next_of(tokens: Sequence[int], text: Sequence[int]) -> int | None:
        for length in range(min(longest, len(text)), shortest - 1, -1):
            end = list(text[-length:])
            places = [at for at in range(length, len(tokens)) if list(tokens[at - length : at]) == end]
            followed = [tokens[at] for at in places if tokens[at] < context.vocab_size]
            if not followed or context.vocab_size in end:
                continue
            last = {token: at for at, token in enumerate(followed)}
            best = max(last, key=lambda token: (followed.count(token), last[token]))
            if followed.count(best) / len(followed) >= options.backoff_share:
                return best
        return None

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        text = list(tokens)
        while len(text) < len(tokens) + most:
            token = next_of(tokens, text)
            if token is None:
                break
            text.append(token)
        return text[len(tokens) :]

    return draft


_DEFAULTS = Options().model_dump()
BACKOFF = SpeculatorExamples(
    oracle=backoff,
    options=[
        _DEFAULTS,
        {**_DEFAULTS, "backoff_longest": 2},
        {**_DEFAULTS, "backoff_shortest": 1},
        {**_DEFAULTS, "backoff_share": 1.0},
    ],
)


def period(context: SpeculatorContext) -> Draft:
    """Compares token by token."""
    options, vocab_size = Options.model_validate(dict(context.options)), context.vocab_size

    def agree(tokens: Sequence[int], lag: int) -> int:
        pairs = [(at, at - lag) for at in range(len(tokens) - 1, len(tokens) - 1 - options.period_span, -1)]
        same = [early >= 0 and tokens[at] == tokens[early] < vocab_size for at, early in pairs]
        return sum(same) if same[0] else 0

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        scores = [agree(tokens, lag) for lag in range(1, options.period_longest + 1)]
        if max(scores) < options.period_least:
            return []
        lag = scores.index(max(scores)) + 1
        drafts = [tokens[len(tokens) - lag + ahead % lag] for ahead in range(most)]
        return drafts[: drafts.index(vocab_size)] if vocab_size in drafts else drafts

    return draft


PERIOD = SpeculatorExamples(
    oracle=period,
    options=[
        _DEFAULTS,
        {**_DEFAULTS, "period_span": 8},
        {**_DEFAULTS, "period_longest": 3},
        {**_DEFAULTS, "period_least": 12},
    ],
)
