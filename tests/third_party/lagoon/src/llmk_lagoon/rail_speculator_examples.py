"""Examples of the speculators for the conformance kit: both rules once more, by the plainest code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llmk.api import SpeculatorContext
from llmk_testing.speculator_examples import Draft, SpeculatorExamples

from .rail_specs import Options


def by_counts(context: SpeculatorContext) -> Draft:
    """Counts what followed each context anew for every draft."""
    options = Options.model_validate(dict(context.options))

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        known = list(tokens)
        drafts: list[int] = []
        confidence = 1.0
        while len(drafts) < most:
            token, share = likeliest(known, known + drafts)
            confidence *= share
            if share == 0 or confidence < options.least_confidence:
                break
            drafts.append(token)
        return drafts

    def likeliest(known: list[int], text: list[int]) -> tuple[int, float]:
        for size in range(options.longest_context, 0, -1):
            end = text[-size:]
            if len(end) < size or context.vocab_size in end:
                continue
            followed = [
                known[at + size]
                for at in range(len(known) - size)
                if known[at : at + size] == end and known[at + size] != context.vocab_size
            ]
            if not followed:
                continue
            counts = Counter(followed)
            latest = {token: at for at, token in enumerate(followed)}
            token = max(counts, key=lambda token: (counts[token], latest[token]))
            if counts[token] / len(followed) >= options.least_share:
                return token, counts[token] / len(followed)
        return 0, 0.0

    return draft


def by_repeats(context: SpeculatorContext) -> Draft:
    """Compares every earlier place with the end, token by token."""
    options = Options.model_validate(dict(context.options))

    def alike(tokens: Sequence[int], distance: int) -> int:
        size = 0
        while size < options.longest_repeat and size + distance < len(tokens):
            token = tokens[-1 - size]
            if token == context.vocab_size or token != tokens[-1 - size - distance]:
                break
            size += 1
        return size

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        best, found = 0, 0
        for distance in range(1, min(options.window, len(tokens) - 1) + 1):
            size = alike(tokens, distance)
            if size > best:
                best, found = size, distance
        if best < options.shortest_repeat:
            return []
        text = list(tokens)
        while len(text) < len(tokens) + most and text[-found] != context.vocab_size:
            text.append(text[-found])
        return text[len(tokens) :]

    return draft


COUNTS = SpeculatorExamples(
    oracle=by_counts,
    options=(
        {},
        {"longest_context": 2},
        {"longest_context": 6, "least_share": 0.9},
        {"least_share": 0.1, "least_confidence": 0.02},
        {"least_confidence": 0.9},
    ),
)
REPEATS = SpeculatorExamples(
    oracle=by_repeats,
    options=({}, {"longest_repeat": 3}, {"shortest_repeat": 3}, {"window": 24}, {"longest_repeat": 1}),
)
