"""Outputs that match a regular expression, in any tokens, by derivatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llmk.api import GrammarContext, GrammarKind, RequestError
from llmk_delta.loon_regex import parse
from llmk_delta.loon_terms import Term, Terms

MOST_MASKS = 512
MOST_FORCED = 16


@dataclass(slots=True)
class Node:
    """A node of the trie of a vocabulary: the tokens that end here, and what follows by a byte."""

    tokens: list[int] = field(default_factory=list)
    after: dict[int, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mask:
    """The tokens that may follow, as bits; ``only`` is the one where there is no other."""

    bits: bytes
    only: int | None


class Regexes:
    """Follows ``llmk.api.GrammarCompiler``. It is made once for a vocabulary, and called for each request."""

    def __init__(self, context: GrammarContext) -> None:
        self._limits = context.limits
        self._tokens = context.tokens
        self._root = Node()
        for token, text in enumerate(context.tokens):
            if text and token not in context.special_token_ids:
                self._add(token, text)

    def compile(self, kind: GrammarKind, text: str) -> Compiled:
        """``text`` is from the request: what is invalid, or would take too long, is refused."""
        if len(text) > self._limits.symbols:
            raise RequestError(f"the regular expression has more than {self._limits.symbols} characters")
        terms = Terms(self._limits)
        return Compiled(self._root, self._tokens, terms, parse(text, terms, self._limits.symbols))

    def _add(self, token: int, text: bytes) -> None:
        node = self._root
        for byte in text:
            node = node.after.setdefault(byte, Node())
        node.tokens.append(token)


class Compiled:
    """Follows ``llmk.api.CompiledGrammar``: shared by all outputs with the same grammar, as are the masks."""

    def __init__(self, root: Node, tokens: Sequence[bytes], terms: Terms, whole: Term) -> None:
        self._root, self._tokens, self._terms, self._whole = root, tokens, terms, whole
        self._masks: dict[Term, Mask] = {}

    def start(self, end_token_ids: frozenset[int]) -> Output:
        """For one output."""
        return Output(self, self._whole, end_token_ids)

    def mask(self, state: Term) -> Mask:
        """The tokens that may follow in a state, without those that end the output."""
        mask = self._masks.get(state)
        if mask is None:
            if len(self._masks) >= MOST_MASKS:
                self._masks.clear()
            mask = self._masks[state] = self._made(state)
        return mask

    def after(self, state: Term, token: int) -> Term | None:
        """The state behind a token; None where it isn't allowed."""
        text = self._tokens[token]
        for byte in text:
            state = self._terms.after(state, byte)
        return state if text and state is not self._terms.never else None

    def _made(self, state: Term) -> Mask:
        bits = bytearray((len(self._tokens) + 31) // 32 * 4)
        count = last = 0
        for last in self._allowed(state):
            bits[last // 8] |= 1 << last % 8
            count += 1
        return Mask(bytes(bits), last if count == 1 else None)

    def _allowed(self, state: Term) -> Iterator[int]:
        left = [(self._root, state)]
        while left:
            node, state = left.pop()
            yield from node.tokens
            for byte, after in node.after.items():
                following = self._terms.after(state, byte)
                if following is not self._terms.never:
                    left.append((after, following))


class Output:
    """Follows ``llmk.api.Grammar``. Calls are made between the steps of the engine, so they must be quick."""

    def __init__(self, grammar: Compiled, whole: Term, ends: frozenset[int]) -> None:
        self._grammar, self._ends = grammar, ends
        self._states: list[Term | None] = [whole]
        """What must follow after each accepted token: None behind the end."""

    def fill(self, bits: memoryview) -> None:
        """Writes the mask of what may follow, with the tokens that end the output where it may end."""
        state = self._states[-1]
        row = bits.cast("B")
        if state is not None:
            row[:] = self._grammar.mask(state).bits
        if state is None or state.nullable:
            for token in self._ends:
                row[token // 8] |= 1 << token % 8

    def accept(self, tokens: Sequence[int]) -> None:
        """Goes on behind the tokens."""
        for token in tokens:
            state = self._states[-1]
            if token in self._ends and (state is None or state.nullable):
                self._states.append(None)
                continue
            following = self._grammar.after(state, token) if state is not None else None
            if following is None:
                raise ValueError(f"token {token} is not allowed here")
            self._states.append(following)

    def rollback(self, num_tokens: int) -> None:
        """As if the last tokens had not come."""
        del self._states[len(self._states) - num_tokens :]

    def forced(self) -> list[int]:
        """The tokens without alternative that come next."""
        found: list[int] = []
        state = self._states[-1]
        while state is not None and not state.nullable and len(found) < MOST_FORCED:
            token = self._grammar.mask(state).only
            if token is None:
                break
            found.append(token)
            state = self._grammar.after(state, token)
        return found
