"""Outputs that match a regular expression, or are one of several texts, by an automaton over bytes.

The masks of a state are found by walking the sorted vocabulary, in which all tokens with a start that is not allowed
stand together, and are kept: an output that comes to the state again, or another one, has them at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from llmk.api import GrammarContext, GrammarKind
from llmk_lagoon.stork_automata import Automaton, Choices
from llmk_lagoon.stork_patterns import add_pattern, add_texts

_MAX_FORCED = 32
_MAX_MASKS = 256
_ENDED = -1
"""In place of a state: the output has ended."""


class Vocabulary:
    """The tokens with text, sorted by it."""

    def __init__(self, context: GrammarContext) -> None:
        ids: dict[bytes, list[int]] = defaultdict(list)
        for token, text in enumerate(context.tokens):
            if text and token not in context.special_token_ids:
                ids[text].append(token)
        self.texts = sorted(ids)
        self.ids = [ids[text] for text in self.texts]
        self.tokens = context.tokens
        self.special = context.special_token_ids
        self.num_words = (len(context.tokens) + 31) // 32

    def allowed(self, automaton: Automaton, state: int) -> list[int]:
        """The tokens that may come in ``state``."""
        allowed: list[int] = []
        states, before, number = [state], b"", 0
        """``states`` are those behind each byte of the token before, up to the one that is not allowed."""
        while number < len(self.texts):
            text = self.texts[number]
            shared = _shared(before, text)
            del states[shared + 1 :]
            while len(states) <= len(text):
                following = automaton.step(states[-1], text[len(states) - 1])
                if following < 0:
                    break
                states.append(following)
            before = text[: len(states) - 1]
            if len(states) > len(text):
                allowed += self.ids[number]
                number += 1
            else:
                number = self._behind(text[: len(states)], number)
        return allowed

    def _behind(self, start: bytes, number: int) -> int:
        """The number of the first text, from ``number``, that doesn't begin with ``start``."""
        start = start.rstrip(b"\xff")
        if not start:
            return len(self.texts)
        return bisect_left(self.texts, start[:-1] + bytes([start[-1] + 1]), number)


class Patterns:
    """Follows ``llmk.api.GrammarCompiler``."""

    def __init__(self, context: GrammarContext) -> None:
        self._limits = context.limits
        self._vocabulary = Vocabulary(context)

    def compile(self, kind: GrammarKind, text: str) -> Pattern:
        """An automaton of the expression, or of the texts. Raises RequestError where there can't be one."""
        choices = Choices(self._limits.symbols)
        start = choices.state()
        end = add_pattern(choices, start, text) if kind == "regex" else add_texts(choices, start, text)
        return Pattern(self._vocabulary, Automaton(choices, start, end, self._limits.states))


class Pattern:
    """Follows ``llmk.api.CompiledGrammar``. Its outputs share the states and masks that any of them came to."""

    def __init__(self, vocabulary: Vocabulary, automaton: Automaton) -> None:
        self.vocabulary, self.automaton = vocabulary, automaton
        self._masks: dict[int, array[int]] = {}

    def start(self, end_token_ids: frozenset[int]) -> Output:
        """For one output."""
        return Output(self, end_token_ids)

    def mask(self, state: int) -> array[int]:
        """The words of a state's mask, without what ends an output."""
        mask = self._masks.get(state)
        if mask is None:
            mask = array("I", bytes(4 * self.vocabulary.num_words))
            for token in self.vocabulary.allowed(self.automaton, state):
                mask[token // 32] |= 1 << token % 32
            if len(self._masks) >= _MAX_MASKS:
                self._masks.clear()
            self._masks[state] = mask
        return mask


class Output:
    """Follows ``llmk.api.Grammar``."""

    def __init__(self, pattern: Pattern, ends: frozenset[int]) -> None:
        self._pattern, self._ends = pattern, ends
        self._states = [pattern.automaton.start]
        """The states behind each accepted token, from the start."""

    def fill(self, bits: memoryview) -> None:
        """Copies the mask of the state, and adds what ends the output."""
        words = bits.cast("B").cast("I")
        state = self._states[-1]
        if state != _ENDED:
            words[:] = self._pattern.mask(state)
        if self._may_end(state):
            for token in self._ends:
                words[token // 32] |= 1 << token % 32

    def accept(self, tokens: Sequence[int]) -> None:
        """Goes on behind each token."""
        for token in tokens:
            self._states.append(self._behind(self._states[-1], token))

    def rollback(self, num_tokens: int) -> None:
        """As if the last tokens had not come."""
        del self._states[len(self._states) - num_tokens :]

    def forced(self) -> list[int]:
        """The tokens without alternative, up to a number of them."""
        forced: list[int] = []
        state = self._states[-1]
        while state != _ENDED and not self._may_end(state) and len(forced) < _MAX_FORCED:
            allowed = self._pattern.mask(state)
            words = [number for number, word in enumerate(allowed) if word]
            if len(words) != 1 or allowed[words[0]].bit_count() != 1:
                break
            forced.append(32 * words[0] + allowed[words[0]].bit_length() - 1)
            state = self._behind(state, forced[-1])
        return forced

    def _may_end(self, state: int) -> bool:
        return state == _ENDED or self._pattern.automaton.ends(state)

    def _behind(self, state: int, token: int) -> int:
        """The state behind a token. Raises ValueError where it is not allowed."""
        if token in self._ends and self._may_end(state):
            return _ENDED
        text = self._pattern.vocabulary.tokens[token]
        if state == _ENDED or not text or token in self._pattern.vocabulary.special:
            raise ValueError(f"token {token} is not allowed here")
        following = self._pattern.automaton.run(state, text)
        if following < 0:
            raise ValueError(f"token {token} is not allowed here")
        return following


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their start."""
    length = min(len(one), len(other))
    return next((number for number in range(length) if one[number] != other[number]), length)
