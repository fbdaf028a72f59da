"""Cases of a dialect's grammar: it allows the calls that its writer renders, and refuses those against the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from llmk.api import CallWriter, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing.case import Case, Skip

_PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["c", "f", 7]},
    "note": {"type": ["string", "null"]},
    "flag": {"type": "boolean"},
    "at": {
        "type": "object",
        "properties": {"x": {"type": "number"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": _PROPERTIES,
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
]
_SPECIAL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>")
"""What special tokens look like."""
_PAIRS = (("<", "</"), ("begin", "end"), ("start", "end"), ("START", "END"), ("open", "close"), ("prefix", "suffix"))
"""What is different in the names of markers that open and close."""
_LEAST = {"city": "Oslo", "days": 3}
GOOD: tuple[dict[str, Any], ...] = (
    _LEAST,
    {"city": "São Paulo, it's <b>\n", "days": -1},
    {**_LEAST, "unit": "f", "note": None, "flag": False, "at": {"x": 1.5}, "tags": ["a", "b"]},
    {**_LEAST, "unit": 7, "note": "n", "flag": True, "tags": []},
    {**_LEAST, "note": "null and void"},
)
"""Arguments of ``weather``, in the schema's order."""
BAD: tuple[dict[str, Any], ...] = (
    {"city": "Oslo"},
    {"days": 3},
    {},
    {**_LEAST, "days": 1.5},
    {**_LEAST, "days": None},
    {**_LEAST, "unit": "k"},
    {**_LEAST, "unit": 8},
    {**_LEAST, "flag": 1},
    {**_LEAST, "at": {}},
    {**_LEAST, "at": {"x": 1, "y": 2}},
    {**_LEAST, "tags": ["a", "b", "c"]},
    {**_LEAST, "other": 1},
)


def grammar_cases(spec: ParserSpec, case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    yield case("its writer's grammar allows what it renders", check_allowed, spec)
    yield case("its writer's grammar refuses other calls", check_refused, spec)
    yield case("its writer's grammar requests both markers of each pair", check_markers, spec)


def check_allowed(spec: ParserSpec) -> str:
    """Any of the tools, one call or several."""
    writer, count = _writer(spec), 0
    one, many = (Grammar(writer, many=several) for several in (False, True))
    for calls in [[_call("weather", arguments)] for arguments in GOOD] + [[_call("now", {})]]:
        if (text := _rendered(writer, calls)) is not None:
            for grammar in (one, many):
                assert grammar.allows(text), f"{text!r} is refused by the grammar, {grammar.many}"
            count += 1
    two = _rendered(writer, [_call("weather", _LEAST), _call("now", {})])
    if two is not None:
        assert many.allows(two), f"{two!r} is refused by the grammar of several calls"
    assert count, "its writer renders none of the calls"
    return f"{count} calls"


def check_refused(spec: ParserSpec) -> str:
    """Arguments against the schema, tools that there are not, text around, and a second call where one is allowed."""
    writer, count = _writer(spec), 0
    one = Grammar(writer, many=False)
    whole = _rendered(writer, [_call("now", {})])
    assert whole is not None, "its writer does not render a call without arguments"
    calls = [[_call("weather", arguments)] for arguments in BAD]
    calls += [[_call("nowhere", {})], [_call("no", {})], [_call("now", {"x": 1})]]
    calls += [[_call("now", {}), _call("now", {})]]
    texts = [text for each in calls if (text := _rendered(writer, each)) is not None]
    for text in (*texts, "Now. " + whole, whole[: len(whole) // 2], ""):
        assert not one.allows(text), f"{text!r} is allowed by the grammar"
        count += 1
    return f"{count} texts"


def check_markers(spec: ParserSpec) -> str:
    """Where a vocabulary has the token that opens, it has that which closes: text in its place is another token."""
    writer, asked = _writer(spec), set[str]()

    def marker(text: str) -> str:
        asked.add(text)
        return json.dumps(text, ensure_ascii=False)

    writer.grammar(TOOLS, many=True, marker=marker)
    text = (
        _rendered(writer, [_call("weather", _LEAST), _call("now", {})]) or _rendered(writer, [_call("now", {})]) or ""
    )
    for special in _SPECIAL.findall(text):
        assert any(special in each for each in asked), f"{special!r} is not requested as a marker, and is in {text!r}"
    for one in asked:
        for pair in _PAIRS:
            for this, that in (pair, pair[::-1]):
                other = one.replace(this, that, 1).rstrip(">" if that == "<" else "")
                missing = this in one and other in text and not any(other in each for each in asked)
                assert not missing, f"{one!r} is requested as a marker, and {other!r} is not, which is in {text!r}"
    return f"{len(asked)} markers"


class Unreadable(AssertionError):
    """A grammar that can't be read."""


class Grammar:
    """The grammar of calls of ``tools``, over bytes."""

    def __init__(self, writer: CallWriter, *, many: bool, tools: Sequence[Mapping[str, Any]] = TOOLS) -> None:
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError as error:
            raise Skip(
                "llguidance reads grammars, and is not installed: pip install 'llmk-testing[grammars]'"
            ) from error
        self.many = "several calls" if many else "one call"
        self.texts = writer.grammar(tools, many=many, marker=partial(json.dumps, ensure_ascii=False))
        self._tokenizer, self._matcher = LLTokenizer("byte"), LLMatcher
        made = self._made()
        if made.is_error():
            raise Unreadable(f"the grammar of {self.many} can't be read: {made.get_error()}")

    def allows(self, text: str) -> bool:
        """Whether the grammar allows the text as a whole."""
        made, tokens = self._made(), self._tokenizer.tokenize_bytes(text.encode())
        whole = made.validate_tokens(tokens) == len(tokens) and made.consume_tokens(tokens)
        return bool(whole and made.is_accepting())

    def walk(self) -> Walk:
        """A text that starts empty."""
        return Walk(self._made(), self._tokenizer)

    def _made(self) -> Any:
        return self._matcher(self._tokenizer, self.texts, log_level=0)


class Walk:
    """A text that follows a grammar, piece by piece."""

    def __init__(self, matcher: Any, tokenizer: Any) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._bytes = bytearray()

    @property
    def text(self) -> str:
        """What was taken."""
        return self._bytes.decode()

    @property
    def may_end(self) -> bool:
        """Whether the grammar allows the text as a whole."""
        return bool(self._matcher.is_accepting())

    def forced(self) -> bool:
        """Takes what must follow, if there is such."""
        return self._take(self._matcher.compute_ff_bytes())

    def take(self, piece: str) -> bool:
        """Takes a piece, if it may follow."""
        return self._take(piece.encode())

    def _take(self, data: bytes) -> bool:
        tokens = self._tokenizer.tokenize_bytes(data)
        if not tokens or self._matcher.validate_tokens(tokens) < len(tokens):
            return False
        self._bytes += data
        return bool(self._matcher.consume_tokens(tokens))


def _writer(spec: ParserSpec) -> CallWriter:
    writer: CallWriter = load_object(spec.writer)
    return writer


def _call(name: str, arguments: Mapping[str, Any]) -> WrittenCall:
    return WrittenCall(name, dict(arguments), f"call_{name}")


def _rendered(writer: CallWriter, calls: Sequence[WrittenCall]) -> str | None:
    try:
        return writer.render(calls)
    except (RequestError, ValueError):
        return None
