"""A compiler of grammars that are regular expressions or choices: see :mod:`llmk_fjord.skua_regex`.

The automaton is made whole when a request is compiled, so that whatever exceeds the limits is refused then and never
fails an output. The mask of a state is made when an output first comes there, and kept for a while.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

from llmk.api import CompiledGrammar, Grammar, GrammarCompiler, GrammarContext, GrammarKind, RequestError
from llmk_fjord.skua_regex import DEAD, Dfa, Node, RegexParser, literal

ENDED = -2
"""The state of an output that has been ended."""

MASKS = 128
"""Masks that are kept of one grammar."""

FORCED = 64
"""The most tokens that are looked ahead for."""


class Vocabulary:
    """A model's tokens that stand for text, sorted by their bytes, each with the number of leading bytes that it shares
    with the one before."""

    def __init__(self, context: GrammarContext) -> None:
        self.size = len(context.tokens)
        self.words: dict[int, bytes] = {
            token: bytes(text)
            for token, text in enumerate(context.tokens)
            if text and token not in context.special_token_ids
        }
        self.sorted: list[tuple[int, bytes, int]] = []
        before = b""
        for token, word in sorted(self.words.items(), key=lambda item: item[1]):
            shared = 0
            for one, other in zip(word, before, strict=False):
                if one != other:
                    break
                shared += 1
            self.sorted.append((token, word, shared))
            before = word
        self.bytes = frozenset(word[0] for word in self.words.values() if len(word) == 1)

    def follow(self, dfa: Dfa, state: int) -> list[tuple[int, int]]:
        """The tokens that lead on from ``state``, each with the state that it leads to."""
        found: list[tuple[int, int]] = []
        path = [state]
        for token, word, shared in self.sorted:
            if shared >= len(path):
                continue  # it shares the byte that led nowhere
            del path[shared + 1 :]
            for byte in word[shared:]:
                state = dfa.rows[path[-1]][byte]
                if state == DEAD:
                    break
                path.append(state)
            else:
                found.append((token, path[-1]))
        return found


class Compiler(GrammarCompiler):
    """Follows ``llmk.api.GrammarCompiler``: made once for a vocabulary, and called for each request."""

    def __init__(self, context: GrammarContext) -> None:
        self._limits = context.limits
        self._vocabulary = Vocabulary(context)

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        """``text`` is from the request: whatever is wrong with it is a RequestError."""
        if len(text) > self._limits.symbols:
            raise RequestError(f"the grammar has more than {self._limits.symbols} characters (limits.grammar_symbols)")
        if kind == "regex":
            node = RegexParser(text).parse()
        elif kind == "choice":
            node = _choices(text)
        else:
            raise RequestError(f"grammars of the kind {kind!r} are not supported")
        return Automaton(Dfa(node, self._limits), self._vocabulary)


def _choices(text: str) -> Node:
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError("the choices are not JSON") from error
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise RequestError("the choices are not a list of one or more texts")
    if any("\ud800" <= char <= "\udfff" for one in texts for char in one):
        raise RequestError("a choice has half of a surrogate pair, which no text has")
    return Node("alt", tuple(literal(one) for one in texts))


class Automaton(CompiledGrammar):
    """A grammar and the vocabulary, shared by all outputs; but for the masks, which are made as they are needed, it
    doesn't change."""

    def __init__(self, dfa: Dfa, vocabulary: Vocabulary) -> None:
        self.dfa, self.vocabulary = dfa, vocabulary
        self._masks: dict[int, tuple[array[int], int | None]] = {}
        self.live = self._live()
        if 0 not in self.live:
            raise RequestError("the model's vocabulary lacks tokens for every text that matches the grammar")

    def start(self, end_token_ids: frozenset[int]) -> Grammar:
        """For one output."""
        return Output(self, end_token_ids)

    def _live(self) -> frozenset[int]:
        """The states from which a match can be completed: all of them, unless the vocabulary lacks a byte."""
        rows, vocabulary = self.dfa.rows, self.vocabulary
        every = frozenset(range(len(rows)))
        used = {byte for row in rows for byte, state in enumerate(row) if state != DEAD}
        if used <= vocabulary.bytes:
            return every
        sources: dict[int, set[int]] = {}
        for state in every:
            for target in {target for _, target in vocabulary.follow(self.dfa, state)}:
                sources.setdefault(target, set()).add(state)
        live, todo = set(self.dfa.accepting), list(self.dfa.accepting)
        while todo:
            for source in sources.get(todo.pop(), ()):
                if source not in live:
                    live.add(source)
                    todo.append(source)
        return frozenset(live)

    def step(self, state: int, token: int) -> int:
        """The state behind a token of the text, or ``DEAD``."""
        word = self.vocabulary.words.get(token)
        if word is None or state < 0:
            return DEAD
        for byte in word:
            state = self.dfa.rows[state][byte]
            if state == DEAD:
                return DEAD
        return state if state in self.live else DEAD

    def mask(self, state: int) -> tuple[array[int], int | None]:
        """The mask of the tokens of the text that may come at ``state``, and the only one of them, if it is."""
        found = self._masks.pop(state, None)
        if found is None:
            words = array("I", bytes(4 * (-(-self.vocabulary.size // 32))))
            tokens = [token for token, target in self.vocabulary.follow(self.dfa, state) if target in self.live]
            for token in tokens:
                words[token >> 5] |= 1 << (token & 31)
            found = words, tokens[0] if len(tokens) == 1 else None
            if len(self._masks) >= MASKS:
                del self._masks[next(iter(self._masks))]
        self._masks[state] = found
        return found


class Output(Grammar):
    """How far one output has come: the states behind each of its tokens."""

    def __init__(self, automaton: Automaton, ends: frozenset[int]) -> None:
        self._automaton, self._ends = automaton, ends
        self._states = [0]

    def _may_end(self, state: int) -> bool:
        return state == ENDED or state in self._automaton.dfa.accepting

    def fill(self, bits: memoryview) -> None:
        """The tokens that go on, and those that end the output where it may end. Behind the end, these alone."""
        state = self._states[-1]
        if state != ENDED:
            words, _ = self._automaton.mask(state)
            bits[:] = memoryview(words).cast("B").cast("i")
        if self._may_end(state):
            unsigned = bits.cast("B").cast("I")
            for token in self._ends:
                unsigned[token >> 5] |= 1 << (token & 31)

    def accept(self, tokens: Sequence[int]) -> None:
        """Goes on over tokens. One that ends the output does so where it may, also if it could be text."""
        for token in tokens:
            state = self._states[-1]
            following = ENDED if token in self._ends and self._may_end(state) else self._automaton.step(state, token)
            if following == DEAD:
                raise ValueError(f"token {token} is not allowed here")
            self._states.append(following)

    def rollback(self, num_tokens: int) -> None:
        """As if the last tokens had not come."""
        if num_tokens:
            del self._states[-num_tokens:]

    def forced(self) -> Sequence[int]:
        """The tokens that have no alternative. Masks behind them are made for it, which the next steps need."""
        tokens: list[int] = []
        state = self._states[-1]
        while len(tokens) < FORCED and state != ENDED and not self._may_end(state):
            _, only = self._automaton.mask(state)
            if only is None:
                break
            tokens.append(only)
            state = self._automaton.step(state, only)
        return tokens
