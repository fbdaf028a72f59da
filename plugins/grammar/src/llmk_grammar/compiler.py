"""Compiles grammars with llguidance (https://github.com/guidance-ai/llguidance), and matches outputs with them.

llguidance makes masks as they are needed: a lexer of derivatives of regular expressions under an Earley parser, over a
trie of the vocabulary. Its limits bound the time and memory of each call.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from llmk.api import GrammarContext, GrammarKind, RequestError
from llmk_grammar.vocabulary import Vocabulary

WHITESPACE = r"[ \n\r\t]{0,64}"
"""Between the tokens of JSON. Without a bound, a model may write nothing else until its output is cut off."""
_ENFORCED = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": WHITESPACE}
"""Options that a schema may not set itself (``x-guidance``): what can't be enforced is refused."""
_SCHEMA = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|(?P<json>%json\s*(?=\{))')
"""The start of a schema in a grammar, or a text, regular expression or comment, which may be spelt as one."""
_KEYWORDS = {"regex parse error": "pattern", "Pointer ": "$ref", "Resource ": "$ref", "Unknown format": "format"}
"""The keyword of a schema that an error is about, by its start."""
_PLACE = re.compile(r"^at \d+\(\d+\): ")
"""The start of an error of a grammar in Lark: line and column."""
_SCHEMA_ERROR = "failed to compile JSON schema: "
_decoder = json.JSONDecoder()
_WORD = 4
"""Bytes of a mask's words."""
_MOST_THREADS = 8


class Compiler:
    """Follows :class:`llmk.api.GrammarCompiler`."""

    def __init__(self, context: GrammarContext) -> None:
        vocabulary = Vocabulary(context)
        self._end = vocabulary.eos_token_id
        self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary))
        self._limits = LLParserLimits(
            max_grammar_size=context.limits.symbols, max_lexer_states=context.limits.states, verbose_errors=False
        )

    def compile(self, kind: GrammarKind, text: str) -> Compiled:
        """See :meth:`llmk.api.GrammarCompiler.compile`."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"it is not valid Unicode: {error.reason} at character {error.start}") from error
        matcher = LLMatcher(self._tokenizer, _grammar(kind, text), log_level=0, limits=self._limits)
        for _ in range(2):
            if matcher.is_error():
                raise RequestError(_plain(matcher.get_error(), kind))
            matcher.compute_bitmask()  # what matches nothing is found here
        return Compiled(matcher, self._end)


class Compiled:
    """Follows :class:`llmk.api.CompiledGrammar`. ``end`` is the token that stands for the end in the matcher's masks,
    which is behind the model's vocabulary."""

    def __init__(self, matcher: LLMatcher, end: int) -> None:
        self._matcher = matcher
        self._end = end

    def start(self, end_token_ids: frozenset[int]) -> Output:
        """See :meth:`llmk.api.CompiledGrammar.start`. Copies share the lexer's automata."""
        return Output(self._matcher.deep_copy(), self._end, end_token_ids)


class Output:
    """Follows :class:`llmk.api.Grammar`. Tokens that end the output are not the matcher's: ``_num_ended`` of them were
    accepted last."""

    def __init__(self, matcher: LLMatcher, end: int, end_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end = end
        self._end_token_ids = end_token_ids
        self._num_ended = 0

    def fill(self, bits: memoryview) -> None:
        """See :meth:`llmk.api.Grammar.fill`."""
        self._put(bytearray() if self._num_ended else self._mask(), bits)

    @staticmethod
    def fill_all(rows: Sequence[tuple[Output, memoryview]]) -> None:
        """See :meth:`llmk.api.Grammar.fill_all`. By several threads."""
        going = [(output, bits) for output, bits in rows if not output._num_ended]
        if not going:
            return
        size = (going[0][0]._end // 32 + 1) * _WORD
        masks = bytearray(size * len(going))
        matchers = [(output._matcher, number) for number, (output, _) in enumerate(going)]
        address = ctypes.addressof(ctypes.c_char.from_buffer(masks))
        _executor().unsafe_compute_mask_ptr(matchers, address, size, len(going))
        view = memoryview(masks)
        for number, (output, bits) in enumerate(going):
            output._check()
            output._put(view[number * size : (number + 1) * size], bits)
        for output, bits in rows:
            if output._num_ended:
                output.fill(bits)

    def _put(self, mask: bytearray | memoryview, bits: memoryview) -> None:
        """Writes the matcher's mask, or none where the output has ended, as one of the model's vocabulary."""
        if bits.nbytes != -(-self._end // 32) * _WORD:
            raise ValueError(f"a mask of {bits.nbytes // _WORD} words, for a vocabulary of {self._end} tokens")
        may_end, end = True, self._end
        row = bits.cast("B")
        if mask:
            may_end = bool(mask[end >> 3] >> (end & 7) & 1)
            mask[end >> 3] &= ~(1 << (end & 7)) & 0xFF
            row[:] = mask[: row.nbytes]
        for token in self._end_token_ids if may_end else ():
            row[token >> 3] |= 1 << (token & 7)

    def accept(self, tokens: Sequence[int]) -> None:
        """See :meth:`llmk.api.Grammar.accept`."""
        for token in tokens:
            if self._num_ended == 0 and self._matcher.validate_tokens([token]):
                self._matcher.consume_token(token)
                self._check()
            elif token in self._end_token_ids and (self._num_ended or self._matcher.is_accepting()):
                self._num_ended += 1
            else:
                raise ValueError(f"token {token} is not allowed here")

    def rollback(self, num_tokens: int) -> None:
        """See :meth:`llmk.api.Grammar.rollback`."""
        ended = min(num_tokens, self._num_ended)
        self._num_ended -= ended
        if num_tokens > ended:
            self._matcher.rollback(num_tokens - ended)
            self._check()

    def forced(self) -> Sequence[int]:
        """See :meth:`llmk.api.Grammar.forced`."""
        return () if self._num_ended else self._matcher.compute_ff_tokens()

    def _mask(self) -> bytearray:
        """Of the matcher's vocabulary, which has one more token, in bytes."""
        mask = bytearray(self._matcher.compute_bitmask())
        self._check()
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"the output can't be matched further: {_plain(self._matcher.get_error())}")


@cache
def _executor() -> LLExecutor:
    """The threads that fill masks: half of the processors, as the others have work too."""
    return LLExecutor(num_threads=max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2)))


def _grammar(kind: GrammarKind, text: str) -> str:
    """llguidance's form of a grammar."""
    if kind == "regex":
        return LLMatcher.grammar_from_regex(_without_anchors(text))
    if kind == "lark":
        return _with_enforced(text)
    if kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(map(re.escape, _choices(text))))
    try:
        if text.strip() == "false":
            raise RequestError("nothing matches it")
        schema: Any = {} if text.strip() == "true" else text
        overrides: Any = _ENFORCED
        return LLMatcher.grammar_from_json_schema(schema, overrides=overrides)
    except ValueError as error:
        raise RequestError(f"it is not a JSON schema: {error}") from error


def _with_enforced(lark: str) -> str:
    """A grammar whose schemas have the options of :data:`_ENFORCED`, no matter which they have."""
    if not lark.strip():
        raise RequestError("it has no rules")
    made, at = [], 0
    for found in _SCHEMA.finditer(lark):
        if found.start() < at or not found["json"]:
            continue  # in a schema, or a text that is spelt as the start of one
        try:
            schema, end = _decoder.raw_decode(lark, found.end())
        except ValueError as error:
            raise RequestError(f"%json is not followed by a JSON schema: {error}") from error
        if isinstance(schema, dict):
            schema["x-guidance"] = _ENFORCED
        made += [lark[at : found.end()], json.dumps(schema)]
        at = end
    return "".join([*made, lark[at:]])


def _without_anchors(regex: str) -> str:
    """The whole output is matched, so anchors at the ends say nothing; llguidance takes none, and drops a backslash
    that escapes nothing."""
    regex = regex.removeprefix("^")
    body = regex.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    if escaped and body == regex:
        raise RequestError("the backslash at its end escapes nothing")
    return regex if escaped else body


def _plain(message: str, kind: GrammarKind = "lark") -> str:
    """An error of llguidance's in a line, without the grammar that it made of the text, and the options of its own. It
    names the keyword of a schema."""
    message = _PLACE.sub("", message)
    message = message.partition(" (in regex): ")[2] or message
    if message.startswith(_SCHEMA_ERROR):
        return _plain(message.removeprefix(_SCHEMA_ERROR), "json")
    if message.startswith("NoExtension"):
        return "nothing matches it"
    if message.startswith("Unimplemented keys: "):
        keys = re.findall('"([^"]+)"', message.partition("\n")[0])
        return f"{', '.join(keys)} can't be enforced"
    keyword = next((name for start, name in _KEYWORDS.items() if message.startswith(start)), "")
    if keyword and kind == "json":
        return f"{keyword}: {_plain(message)}"
    lines = [line.strip() for line in message.splitlines()]
    named = [line for line in lines if line.startswith("error: ")]
    first = next((line for line in lines if line), message)
    return (named[0] if named else first).removeprefix("error: ").partition(" Enable '")[0].rstrip(".")


def _choices(text: str) -> list[str]:
    """The texts of a choice. Raises RequestError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the choice is not JSON: {error}") from None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise RequestError("a choice must be a JSON array of one text or more")
    if any("\ud800" <= character <= "\udfff" for each in found for character in each):
        raise RequestError("a text of the choice has half of a surrogate pair")
    return found
