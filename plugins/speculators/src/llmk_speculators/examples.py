"""Examples for the conformance kit: options of ``[plugin.speculators]``, and the rule of prompt lookup once more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from llmk.api import SpeculatorContext
from llmk_testing.speculator_examples import Draft, SpeculatorExamples

OPTIONS: Sequence[dict[str, Any]] = (
    {"min_match": 2, "max_match": 4, "max_spec_factor": 2.0},
    {"min_match": 1, "max_match": 1, "max_spec_factor": 0.5},
    {"min_match": 3, "max_match": 32, "max_spec_factor": 1e9},
)


def plain_lookup(context: SpeculatorContext) -> Draft:
    """All places, the longest match first, of which the last one counts."""
    lengths = range(context.options["max_match"], context.options["min_match"] - 1, -1)

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        text = list(tokens)
        for length in lengths:
            places = [at for at in range(length, len(text)) if text[at - length : at] == text[-length:]]
            if places:
                loop = text[places[-1] :]
                return [loop[number % len(loop)] for number in range(most)]
        return []

    return draft


def plain_host_lookup(context: SpeculatorContext) -> Draft:
    """Up to what stands for an embedding."""
    draft = plain_lookup(context)
    return lambda tokens, most: list(takewhile(lambda token: token < context.vocab_size, draft(tokens, most)))


LOOKUP = SpeculatorExamples(options=OPTIONS, oracle=plain_host_lookup)
DEVICE_LOOKUP = SpeculatorExamples(options=OPTIONS, oracle=plain_lookup)
