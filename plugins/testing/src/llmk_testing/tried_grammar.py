"""A grammar compiler under test: vocabularies that it is made with, and the grammars of its examples."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from llmk.api import (
    CompiledGrammar,
    Grammar,
    GrammarCompiler,
    GrammarContext,
    GrammarKind,
    GrammarLimits,
    GrammarSpec,
    RequestError,
)
from llmk.api.errors import describe
from llmk.kernel.loader import load_object
from llmk_testing.case import Skip
from llmk_testing.grammar_texts import CHOICES, Example

SIZES = (262, 287, 288, 289, 400)
"""Vocabulary sizes around whole words of a mask."""
PADDING = 70
"""Ids behind the tokenizer's last one, as models have them: more than two words of a mask."""
PARTS = (b"ab", b"true", b'"}', b'":', b"el", b"", b"a", b"null", b"00", b" the", b"\xc3\xa9", b"\xa9a", b"el")
"""Tokens of several bytes, of none, and of the same bytes as others."""


class Words:
    """A vocabulary: the 256 bytes, tokens of several bytes, two special ones, which spell text, and ``padding`` behind
    these: ids without text."""

    def __init__(self, size: int, padding: int = 0) -> None:
        several = [PARTS[number % len(PARTS)] for number in range(size - 258)]
        self.tokens = [*(bytes([byte]) for byte in range(256)), *several, b"a", b"<stop>", *[b""] * padding]
        self.size = size + padding
        self.ends = frozenset({size - 1, size - 2})

    def encode(self, text: str) -> list[int]:
        """The longest token first."""
        data, ids = text.encode(), []
        while data:
            tokens = range(min(self.ends))
            known = [token for token in tokens if self.tokens[token] and data.startswith(self.tokens[token])]
            best = max(known, key=lambda token: (len(self.tokens[token]), -token))
            ids.append(best)
            data = data[len(self.tokens[best]) :]
        return ids

    def context(self, limits: GrammarLimits) -> GrammarContext:
        """What a compiler is made with."""
        return GrammarContext(self.tokens, self.ends, self.encode, limits)

    def mask(self, grammar: Grammar) -> set[int]:
        """The allowed tokens. Raises AssertionError where a bit is not of the vocabulary."""
        bits = array("i", [0] * -(-self.size // 32))
        grammar.fill(memoryview(bits))
        allowed = {token for token in range(32 * len(bits)) if bits[token // 32] >> token % 32 & 1}
        assert max(allowed, default=0) < self.size, f"token {max(allowed)} is allowed, of {self.size}"
        return allowed


class Tried:
    """A compiler, and its examples."""

    def __init__(self, make: Callable[[GrammarContext], GrammarCompiler], spec: GrammarSpec, seed: int) -> None:
        self.spec = spec
        self.words = Words(SIZES[-1], PADDING)
        self.random = random.Random(seed)
        self.examples = [*_examples(spec), *(CHOICES if "choice" in spec.kinds else ())]
        self.make = make
        self._compiler: GrammarCompiler | None = None

    def compiler(self, words: Words, limits: GrammarLimits | None = None) -> GrammarCompiler:
        """A compiler of its own."""
        return self.make(words.context(limits or GrammarLimits()))

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        """For :attr:`words`."""
        self._compiler = self._compiler or self.compiler(self.words)
        return self._compiler.compile(kind, text)

    def compiled(self) -> Iterator[tuple[Example, CompiledGrammar]]:
        """Each example."""
        for example in self.examples:
            yield example, self.compile(example["kind"], example["text"])

    def refuses(self, kind: str, text: str, compiler: GrammarCompiler | None = None) -> bool:
        """Whether a text is refused, with the error that it must be refused with, by ``compiler`` or that for
        :attr:`words`."""
        try:
            compiler.compile(kind_of(kind), text) if compiler else self.compile(kind_of(kind), text)
        except RequestError:
            return True
        except Exception as error:
            raise AssertionError(
                f"compile raised {describe(error)}, not RequestError, for the {kind} {text!r}"
            ) from error
        return False

    def takes(self, compiled: CompiledGrammar, text: str, ids: Sequence[int], words: Words | None = None) -> str:
        """Why the tokens of ``text`` are no output; empty where they are. ``words``: another vocabulary, in which it
        was compiled."""
        words = words or self.words
        grammar = compiled.start(words.ends)
        for at, token in enumerate(ids):
            if token not in words.mask(grammar):
                return f"token {at} of {[words.tokens[id] for id in ids]} is not allowed"
            grammar.accept([token])
        return "" if words.ends <= words.mask(grammar) else f"the output may not end after {text!r}"


def kind_of(kind: str) -> GrammarKind:
    """The kind of that name."""
    known: Mapping[str, GrammarKind] = {"regex": "regex", "choice": "choice", "json": "json", "lark": "lark"}
    return known[kind]


def _examples(spec: GrammarSpec) -> Sequence[Example]:
    if not spec.examples:
        raise Skip("the spec names no examples: grammars, and texts that match them")
    found = load_object(spec.examples)
    good = (
        isinstance(found, Sequence) and found and all(isinstance(one, Mapping) and one.get("matches") for one in found)
    )
    assert good, f"{spec.examples} is {found!r}, expected a sequence of mappings with kind, text, matches and fails"
    missing = set(spec.kinds) - {one["kind"] for one in found}
    assert not missing, f"{spec.examples} has no grammar of the kinds {', '.join(sorted(missing))}"
    return list(found)


def shown(example: Example) -> str:
    """A grammar, in a message."""
    return f"the {example['kind']} {example['text']!r}"
