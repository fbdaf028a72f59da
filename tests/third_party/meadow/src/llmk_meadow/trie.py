"""A grammar backend: outputs that are one of a list of texts.

The texts are a trie of bytes, the vocabulary is another. What may follow at a node is what both have in common, which
is found once for each node that an output comes to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from llmk.api import CompiledGrammar, Grammar, GrammarCompiler, GrammarContext, GrammarKind, RequestError

END = -1
"""The node of an output that has ended."""


class Words:
    """The tokens of a vocabulary, as a trie."""

    __slots__ = ("children", "tokens")

    def __init__(self) -> None:
        self.children: dict[int, Words] = {}
        self.tokens: list[int] = []

    def add(self, token: int, text: bytes) -> None:
        """Adds a token."""
        at = self
        for byte in text:
            at = at.children.setdefault(byte, Words())
        at.tokens.append(token)


def texts_of(text: str) -> list[bytes]:
    """The texts of a choice, each once. Raises RequestError."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError("a choice must be a JSON array of texts") from None
    if not isinstance(choices, list) or not all(isinstance(each, str) for each in choices):
        raise RequestError("a choice must be a JSON array of texts")
    if not choices:
        raise RequestError("a choice must have one text at least")
    try:
        return list(dict.fromkeys(each.encode() for each in choices))
    except UnicodeEncodeError:
        raise RequestError("a choice must be of valid Unicode") from None


class Trie(GrammarCompiler):
    """Compiles choices."""

    def __init__(self, context: GrammarContext) -> None:
        self._words = Words()
        self._texts = context.tokens
        self._symbols = context.limits.symbols
        for token, text in enumerate(context.tokens):
            if text and token not in context.special_token_ids:
                self._words.add(token, text)

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        """The trie of the texts."""
        if kind != "choice":
            raise RequestError(f"a grammar must be a choice; {kind} is not known")
        texts = texts_of(text)
        if sum(map(len, texts)) > self._symbols:
            raise RequestError(f"a choice must have {self._symbols:,} bytes at most")
        return Choice(texts, self._words, self._texts)


class Choice(CompiledGrammar):
    """A trie of texts. Node 0 is its root."""

    def __init__(self, texts: Sequence[bytes], words: Words, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.ends: set[int] = set()
        self._words = words
        self._children: list[dict[int, int]] = [{}]
        self._allowed: dict[int, tuple[int, ...]] = {}
        for text in texts:
            self._add(text)

    def _add(self, text: bytes) -> None:
        at = 0
        for byte in text:
            if byte not in self._children[at]:
                self._children[at][byte] = len(self._children)
                self._children.append({})
            at = self._children[at][byte]
        self.ends.add(at)

    def start(self, end_token_ids: frozenset[int]) -> Grammar:
        """At the root."""
        return Chosen(self, end_token_ids)

    def allowed(self, node: int) -> tuple[int, ...]:
        """The tokens that go on from a node."""
        found = self._allowed.get(node)
        if found is None:
            found = self._allowed[node] = tuple(self._common(node))
        return found

    def _common(self, node: int) -> Iterator[int]:
        left = [(node, self._words)]
        while left:
            at, words = left.pop()
            yield from words.tokens
            for byte, child in self._children[at].items():
                if byte in words.children:
                    left.append((child, words.children[byte]))

    def after(self, node: int, text: bytes) -> int | None:
        """The node behind a text; ``None``: it does not go on from here."""
        at: int | None = node
        for byte in text:
            at = self._children[at].get(byte) if at is not None else None
        return at


class Chosen(Grammar):
    """One output: the nodes that it came through."""

    def __init__(self, choice: Choice, end_token_ids: frozenset[int]) -> None:
        self._choice = choice
        self._end_token_ids = end_token_ids
        self._nodes = [0]

    def fill(self, bits: memoryview) -> None:
        """The tokens that go on, and those that end it."""
        data = bits.cast("B")
        for token in self._next():
            data[token // 8] |= 1 << token % 8

    def _next(self) -> set[int]:
        node = self._nodes[-1]
        if node == END:
            return set(self._end_token_ids)
        tokens = set(self._choice.allowed(node))
        return tokens | self._end_token_ids if node in self._choice.ends else tokens

    def accept(self, tokens: Sequence[int]) -> None:
        """One after the other. A token that goes on is text, also where it ends outputs."""
        for token in tokens:
            self._nodes.append(self._after(token))

    def _after(self, token: int) -> int:
        node = self._nodes[-1]
        if node != END and token in self._choice.allowed(node):
            after = self._choice.after(node, self._choice.tokens[token])
            assert after is not None, "allowed tokens go on"
            return after
        if token in self._end_token_ids and (node == END or node in self._choice.ends):
            return END
        raise ValueError(f"token {token} is not allowed here")

    def rollback(self, num_tokens: int) -> None:
        """Back by so many nodes."""
        del self._nodes[len(self._nodes) - num_tokens :]

    def forced(self) -> Sequence[int]:
        """As long as one token alone is allowed."""
        forced: list[int] = []
        while len(only := self._next()) == 1 and self._nodes[-1] != END:
            forced += only
            self.accept(forced[-1:])
        self.rollback(len(forced))
        return forced
