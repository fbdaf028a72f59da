"""Compilers of grammars that are right but for one mistake: all but the mistake is ``llmk-grammar``'s."""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from defects import Defect
from llmk.api import CompiledGrammar, Grammar, GrammarContext, GrammarKind, GrammarLimits, RequestError
from llmk_grammar.compiler import Compiled, Compiler, Output
from llmk_grammar.examples import GRAMMARS

EXAMPLES = GRAMMARS


class Good(Compiler):
    """``output`` is the class of what is started."""

    output: type[Changed]

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(context)
        self.context = context

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return Wrapped(super().compile(kind, text), self.output)


class Wrapped:
    """A compiled grammar whose outputs are of another class."""

    def __init__(self, compiled: Compiled, output: type[Changed]) -> None:
        self.compiled, self.output = compiled, output

    def start(self, end_token_ids: frozenset[int]) -> Grammar:
        return self.output(self.compiled.start(end_token_ids), end_token_ids)


class Changed:
    """An output that does what another does."""

    def __init__(self, output: Output, ends: frozenset[int]) -> None:
        self.output, self.ends = output, ends

    def fill(self, bits: memoryview) -> None:
        self.output.fill(bits)

    def accept(self, tokens: Sequence[int]) -> None:
        self.output.accept(tokens)

    def rollback(self, num_tokens: int) -> None:
        self.output.rollback(num_tokens)

    def forced(self) -> Sequence[int]:
        return self.output.forced()


Good.output = Changed


def _set(bits: memoryview, token: int, allowed: bool) -> None:
    data = bits.cast("B")
    data[token >> 3] = data[token >> 3] & ~(1 << (token & 7)) & 0xFF | allowed << (token & 7)


class NoEnd(Changed):
    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        for token in self.ends:
            _set(bits, token, False)


class EarlyEnd(Changed):
    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        for token in self.ends:
            _set(bits, token, True)


class OneEnd(Changed):
    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        _set(bits, min(self.ends), False)


class LongForms(Changed):
    """Allows bytes that spell a character in more bytes than it has."""

    last = 0

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self.last = tokens[-1] if tokens else self.last

    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        if self.last in (0xE0, 0xF0):
            _set(bits, 0x80, True)


class NoBorder(Changed):
    """Leaves out the first character of three bytes."""

    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        _set(bits, 0xE0, False)


class NoRollback(Changed):
    def rollback(self, num_tokens: int) -> None:
        pass


class FewBack(Changed):
    """Takes back a hundred tokens at most."""

    def rollback(self, num_tokens: int) -> None:
        super().rollback(min(num_tokens, 100))


class RollbackOverEnd(Changed):
    """Takes the end for one of the text's tokens."""

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept([token for token in tokens if token not in self.ends])


class Reversed(Changed):
    """The first token is the highest bit of a byte."""

    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        data = bits.cast("B")
        data[:] = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)


class Beyond(Changed):
    """Allows what is behind the vocabulary."""

    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        bits[-1] |= -(1 << 31) if max(self.ends) % 32 < 31 else 0


class AnyForced(Changed):
    """Guesses where there is a choice."""

    def forced(self) -> Sequence[int]:
        return self.output.forced() or [ord("a")]


class Shuffled(Changed):
    """Gives each output the mask of another."""

    @staticmethod
    def fill_all(rows: Sequence[tuple[Shuffled, memoryview]]) -> None:
        outputs = [output for output, _ in rows]
        for output, (_, bits) in zip([*outputs[1:], outputs[0]], rows, strict=True):
            output.fill(bits)


class Ended(Changed):
    """Allows nothing behind the end."""

    ended = 0

    def fill(self, bits: memoryview) -> None:
        if not self.ended:
            super().fill(bits)

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self.ended += sum(token in self.ends for token in tokens)

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self.ended = max(0, self.ended - num_tokens)


class LastOnly(Changed):
    """Accepts the last of several tokens."""

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens[-1:])


class FirstRow(Changed):
    """Writes at the start of the buffer that a mask is a part of."""

    def fill(self, bits: memoryview) -> None:
        whole = memoryview(bits.obj).cast("B").cast("i")
        super().fill(whole[: len(bits)])


class AnyEnd(Changed):
    """Ends by the tokens that end any output."""

    known: ClassVar[set[int]] = set()

    def fill(self, bits: memoryview) -> None:
        super().fill(bits)
        self.known |= self.ends
        if all(bits[token >> 5] >> (token & 31) & 1 for token in self.ends):
            for token in self.known:
                _set(bits, token, True)


def _with(kind: type[Changed]) -> type[Good]:
    return type(f"{kind.__name__}Compiler", (Good,), {"output": kind, "__module__": __name__})


class Sharing(Good):
    """One output for all requests of a grammar."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        compiled, started = super().compile(kind, text), dict[frozenset[int], Grammar]()

        class Shared:
            def start(self, ends: frozenset[int]) -> Grammar:
                return started.setdefault(ends, compiled.start(ends))

        return Shared()


class Special(Good):
    """Takes special tokens for text."""

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(replace(context, special_token_ids=frozenset()))


class Lenient(Good):
    """Leaves out of a schema what can't be enforced."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        try:
            return super().compile(kind, text)
        except RequestError as error:
            unknown = " can't be enforced"
            if not error.message.endswith(unknown):
                raise
            left_out = error.message.removesuffix(unknown).split(", ")
            return self.compile(kind, json.dumps({k: v for k, v in json.loads(text).items() if k not in left_out}))


class Prefixes(Good):
    """Matches what starts as an instance does."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return super().compile(
            kind, f"({text.removeprefix('^').removesuffix('$')})(.|\n)*" if kind == "regex" else text
        )


class Empty(Good):
    """Finds out that nothing matches when it is too late."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        try:
            return super().compile(kind, text)
        except RequestError as error:
            if error.message != "nothing matches it":
                raise
            return super().compile("regex", "a")


class Raising(Good):
    """Its errors are its own."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        try:
            return super().compile(kind, text)
        except RequestError as error:
            raise ValueError(error.message) from error


class Unlimited(Good):
    def __init__(self, context: GrammarContext) -> None:
        super().__init__(replace(context, limits=GrammarLimits(10**9, 10**9)))


class FewTexts(Good):
    """Keeps an object for each character; its limit counts texts."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        compiled = super().compile(kind, text)
        self.nodes = [{character: [number]} for number, character in enumerate(text)]
        return compiled


class ToNul(Good):
    """Hands the text to something that takes a NUL character for its end."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return super().compile(kind, text.partition("\0")[0] if kind == "regex" else text)


class Short(Changed):
    """Its masks end with the last token that has text."""

    def fill(self, bits: memoryview) -> None:
        words = memoryview(array("i", bytes(4 * (max(self.ends) // 32 + 1))))
        self.output.fill(words)
        bits[:] = words


class Later(Good):
    """Compiles where outputs start."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        compile = super().compile
        try:
            return compile(kind, text)
        except RequestError as error:
            if "limit" not in error.message:
                raise

        class Uncompiled:
            def start(self, ends: frozenset[int]) -> Grammar:
                return compile(kind, text).start(ends)

        return Uncompiled()


class References(Good):
    """Takes a reference to a group for the digit."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return super().compile(kind, re.sub(r"\\([1-9])", r"\1", text) if kind == "regex" else text)


NoEndCompiler, EarlyEndCompiler, OneEndCompiler = map(_with, (NoEnd, EarlyEnd, OneEnd))
NoRollbackCompiler, FewBackCompiler, RollbackOverEndCompiler = map(_with, (NoRollback, FewBack, RollbackOverEnd))
ReversedCompiler, BeyondCompiler, AnyForcedCompiler = map(_with, (Reversed, Beyond, AnyForced))
ShuffledCompiler, LongFormsCompiler, NoBorderCompiler = map(_with, (Shuffled, LongForms, NoBorder))


ShortCompiler = _with(Short)
EndedCompiler, LastOnlyCompiler, FirstRowCompiler, AnyEndCompiler = map(_with, (Ended, LastOnly, FirstRow, AnyEnd))


class Greedy(Good):
    """Takes a repetition for one without end."""

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return super().compile(kind, re.sub(r"\{(\d),\d\}", r"{\1,}", text) if kind == "regex" else text)


class ByText(Good):
    """Keeps what was compiled, no matter for which vocabulary."""

    kept: ClassVar[dict[str, CompiledGrammar]] = {}

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        compiled = super().compile(kind, text)
        return self.kept.setdefault(text, compiled) if len(self.context.tokens) > 256 else compiled


class Needing(Good):
    """Needs a token that ends outputs, which the 256 bytes lack."""

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(context)
        self.least = min(context.special_token_ids)


class Local(Good):
    """Belongs to the thread that made it."""

    def __init__(self, context: GrammarContext) -> None:
        super().__init__(context)
        self.local = threading.local()
        self.local.kinds = ("regex", "choice", "json")

    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        assert kind in self.local.kinds
        return super().compile(kind, text)


class NoChoice(Good):
    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return super().compile(kind, '[""]' if (kind, text) == ("choice", "[]") else text)


class AnyChoice(Good):
    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        return super().compile(kind, json.dumps(list(json.loads(text))) if kind == "choice" else text)


class Latin(Good):
    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        if kind == "choice" and "[" in text:
            text = text.replace("\\u00e9", "e").replace("é", "e")
        return super().compile(kind, text)


DEFECTS = (
    Defect("no-end", "the output can't be ended", NoEndCompiler, "may end"),
    Defect("early-end", "the output may end at any place", EarlyEndCompiler, "texts that don't match"),
    Defect("one-end", "one of the tokens that end the output is not allowed", OneEndCompiler, "that end the output"),
    Defect("long-forms", "bytes that are no character may follow its first one", LongFormsCompiler, "ranges"),
    Defect("no-border", "what starts like the first character of three bytes is left out", NoBorderCompiler, "ranges"),
    Defect("no-rollback", "tokens are not taken back", NoRollbackCompiler, "taken back"),
    Defect("few-back", "a hundred tokens at most are taken back", FewBackCompiler, "taken back"),
    Defect("end-kept", "the end is taken back as a token of the text", RollbackOverEndCompiler, "taken back"),
    Defect("reversed", "bits of a word are in another order", ReversedCompiler, "texts that match"),
    Defect("beyond", "a bit behind the vocabulary is set", BeyondCompiler, "of the vocabulary alone"),
    Defect("any-forced", "a token is forced where there is a choice", AnyForcedCompiler, "forced"),
    Defect("shuffled", "masks filled together are those of other outputs", ShuffledCompiler, "filled together"),
    Defect("sharing", "all outputs of a grammar have one state", Sharing, "don't depend on each other"),
    Defect("special", "special tokens stand for the text that spells them", Special, "that end the output"),
    Defect("lenient", "keywords that can't be enforced are ignored", Lenient, "can't be enforced"),
    Defect("prefixes", "an output may go on after it has matched", Prefixes, "texts that don't match"),
    Defect("empty", "a grammar that matches nothing is taken", Empty, "matches nothing"),
    Defect("raising", "invalid texts raise ValueError", Raising, "invalid texts"),
    Defect("no-choice", "a choice of nothing is taken", NoChoice, "matches nothing"),
    Defect("any-choice", "a choice that is no list of texts raises", AnyChoice, "invalid texts"),
    Defect("latin", "texts beyond ASCII are other bytes", Latin, "texts that match"),
    Defect("few-texts", "few texts may be of any length", FewTexts, "limits"),
    Defect("ended", "nothing is allowed behind the end", EndedCompiler, "behind the end"),
    Defect("last-only", "of several tokens, the last is accepted", LastOnlyCompiler, "several tokens"),
    Defect("first-row", "masks are written at the start of their buffer", FirstRowCompiler, "in their rows"),
    Defect("any-end", "what ends one output ends all", AnyEndCompiler, "its own tokens alone"),
    Defect("greedy", "a repetition has no end", Greedy, "common grammars"),
    Defect("by-text", "a grammar is kept for all vocabularies", ByText, "vocabularies are apart"),
    Defect("needing", "the 256 bytes are no vocabulary", Needing, "with the 256 bytes"),
    Defect("local", "a compiler belongs to the thread that made it", Local, "other threads"),
    Defect("to-nul", "a regular expression ends with a NUL character", ToNul, "common grammars"),
    Defect("short", "a mask is as long as the tokens that have text", ShortCompiler, "texts that match"),
    Defect("later", "limits are found out where an output starts", Later, "limits"),
    Defect("references", "a reference to a group is a digit", References, "can't be enforced"),
    Defect("unlimited", "limits are ignored", Unlimited, "limits"),
)
