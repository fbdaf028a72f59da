"""Outputs that are one of several texts, in any tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from llmk.api import GrammarContext, GrammarKind, RequestError

Words = Mapping[bytes, Sequence[int]]
"""The tokens with the same bytes."""


class Choices:
    """Follows ``llmk.api.GrammarCompiler``. It is made once for a vocabulary, and called for each request."""

    def __init__(self, context: GrammarContext) -> None:
        self._most = context.limits.symbols
        words: dict[bytes, list[int]] = defaultdict(list)
        for token, text in enumerate(context.tokens):
            if text and token not in context.special_token_ids:
                words[text].append(token)
        self._words: Words = dict(words)
        self._tokens = context.tokens

    def compile(self, kind: GrammarKind, text: str) -> Started:
        """``text`` is from the request: refuse what is invalid, and what would take too long."""
        try:
            choices = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the choices are not JSON: {error}") from error
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
            raise RequestError("the choices are not a list of one or more texts")
        if sum(map(len, choices)) > self._most:
            raise RequestError(f"the choices have more than {self._most} characters")
        try:
            return Started(self._words, self._tokens, [choice.encode() for choice in choices])
        except UnicodeEncodeError as error:
            raise RequestError("a choice has half of a surrogate pair, which no text has") from error


class Started:
    """Follows ``llmk.api.CompiledGrammar``: shared by all outputs with the same grammar, so it doesn't change."""

    def __init__(self, words: Words, tokens: Sequence[bytes], choices: list[bytes]) -> None:
        self._words, self._tokens, self._choices = words, tokens, choices

    def start(self, end_token_ids: frozenset[int]) -> Output:
        """For one output."""
        return Output(self._words, self._tokens, self._choices, end_token_ids)


class Output:
    """Follows ``llmk.api.Grammar``. Calls are made between the steps of the engine, so they must be quick."""

    def __init__(self, words: Words, tokens: Sequence[bytes], choices: list[bytes], ends: frozenset[int]) -> None:
        self._words, self._tokens, self._ends = words, tokens, ends
        self._left = [choices]
        """What is left of each choice that is still possible, after each accepted token. None are left after the
        end."""

    def fill(self, bits: memoryview) -> None:
        """Sets the bit of each token that the rest of a choice starts with, or of those that end the output."""
        words = bits.cast("B").cast("I")  # unsigned, so that bit 31 can be set
        left = self._left[-1]
        for token in (*self._following(left), *(self._ends if b"" in left or not left else ())):
            words[token // 32] |= 1 << token % 32

    def accept(self, tokens: Sequence[int]) -> None:
        """Keeps the choices that go on with the tokens."""
        for token in tokens:
            word, left = self._tokens[token], self._left[-1]
            rest = [choice[len(word) :] for choice in left if word and choice.startswith(word)]
            if token in self._ends and (b"" in left or not left):
                rest = []
            elif not rest:
                raise ValueError(f"token {token} is not allowed here")
            self._left.append(rest)

    def rollback(self, num_tokens: int) -> None:
        """As if the last tokens had not come."""
        del self._left[len(self._left) - num_tokens :]

    def _following(self, left: list[bytes]) -> Iterator[int]:
        for size in {size for choice in left for size in range(1, len(choice) + 1)}:
            for start in {choice[:size] for choice in left if len(choice) >= size}:
                yield from self._words.get(start, ())
