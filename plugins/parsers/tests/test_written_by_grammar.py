"""What the grammars of writers allow is parsed: random texts, as a model would write them under a grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from dialects import SPECS, load, make
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from llmk.api import CallWriter, ParserContext, WrittenCall
from llmk_testing.parsers import Answer, parse

DIALECTS = {name: spec for name, spec in SPECS.items() if spec.writer}
TOKENIZER = LLTokenizer("byte")
_POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}
_PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["c", "f"]},
    "note": {"type": ["string", "null"]},
    "flag": {"type": "boolean"},
    "at": _POINT,
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
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
TEXT = ["a", "Oslo", " ", "\n", "é", "😀", "<", "</", "{", "}", "[", "]", "'", '\\"', "\\n", "\\u00e9", "&", "=", ","]
VALUES = ["0", "-12", "1.5e3", "null", "true", "false", '"', "c", "f", "x", "city", "days", "note", "tags"]


def plain(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Walk:
    """A random text that a grammar allows: pieces that fit, and what the grammar forces."""

    def __init__(self, grammar: str, pieces: list[str], seed: int) -> None:
        self._matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()
        self._pieces = pieces
        self._random = random.Random(seed)
        self._bytes = bytearray()

    def text(self, closers: list[str]) -> str | None:
        """The text; ``None`` if no end was found for it. ``closers`` are tried first once it is long enough."""
        for step in range(400):
            if self._matcher.is_accepting() and (step > 40 or self._random.random() < 0.3):
                break
            if not self._forced() and not self._piece(closers if step > 40 else []) and not self._byte():
                break
        return self._bytes.decode() if self._matcher.is_accepting() else None

    def _forced(self) -> bool:
        forced = self._matcher.compute_ff_bytes()
        return bool(forced) and self._take(forced)

    def _take(self, data: bytes) -> bool:
        tokens = TOKENIZER.tokenize_bytes(data)
        if self._matcher.validate_tokens(tokens) < len(tokens):
            return False
        self._bytes += data
        return bool(self._matcher.consume_tokens(tokens))

    def _piece(self, first: list[str]) -> bool:
        tried = [*first, *self._random.sample(self._pieces, min(8, len(self._pieces)))]
        return any(self._take(piece.encode()) for piece in tried)

    def _byte(self) -> bool:
        """Any character of ASCII that fits."""
        return any(self._take(bytes([byte])) for byte in self._random.sample(range(32, 127), 95))


def allowed(name: str, *, many: bool, count: int) -> Iterator[str]:
    """Texts that the grammar of the dialect ``name`` allows."""
    writer: CallWriter = load(DIALECTS[name].writer)
    grammar = writer.grammar(TOOLS, many=many, marker=plain)
    closers = [*_closers(writer), '"', "}", "]"]
    for seed in range(count):
        text = Walk(grammar, [*TEXT, *VALUES], seed).text(closers)
        if text is not None:
            yield text


def _closers(writer: CallWriter) -> list[str]:
    """What is written behind a string, without its start or its end."""
    text = writer.render([WrittenCall("weather", {"city": "MARK", "days": 1})])
    behind = text.partition("MARK")[2]
    return [behind[at:] for at in range(len(behind))] + [behind[:size] for size in range(len(behind), 0, -1)]


def parsed(name: str, chunks: list[str]) -> Answer:
    return parse(lambda: make(name, ParserContext(tools=TOOLS)), chunks)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
def test_what_a_grammar_allows_is_parsed(name: str, many: bool) -> None:
    writer: CallWriter = load(DIALECTS[name].writer)
    schemas = {tool["name"]: Draft202012Validator(tool["parameters"]) for tool in TOOLS}
    found = 0
    for text in allowed(name, many=many, count=12):
        found += 1
        answer = parsed(name, [text])
        assert parsed(name, list(text)) == answer, text
        assert answer.content == "", text
        assert len(answer.calls) >= 1 if many else len(answer.calls) == 1, text
        calls = [WrittenCall(call.name, json.loads(call.arguments), call.id or "") for call in answer.calls]
        for call in calls:
            schemas[call.name].validate(call.arguments)
        again = parsed(name, [writer.render(calls)])
        assert [(call.name, json.loads(call.arguments)) for call in again.calls] == [
            (call.name, call.arguments) for call in calls
        ], text
    assert found >= 6
