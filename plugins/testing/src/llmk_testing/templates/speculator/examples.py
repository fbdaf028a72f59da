"""Examples for the conformance kit: the rule once more, by the plainest code; every draft must be the same."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import SpeculatorContext
from llmk_testing.speculator_examples import Draft, SpeculatorExamples


def plain(context: SpeculatorContext) -> Draft:
    """Looks for the last two tokens from the end on, again for each draft."""

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        text = list(tokens)
        if len(text) < 2:
            return []
        while len(text) < len(tokens) + most:
            places = [at for at in range(2, len(tokens)) if tokens[at - 2] == text[-2] and tokens[at - 1] == text[-1]]
            if not places or tokens[places[-1]] >= context.vocab_size:
                break
            text.append(tokens[places[-1]])
        return text[len(tokens) :]

    return draft


PAIRS = SpeculatorExamples(oracle=plain)
