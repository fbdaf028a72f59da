"""Cases of calls that are not all that the request's tools say: with further arguments, of other tools, without
arguments that have a default, and of tools that type one name in several ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmk.api import CallWriter, ParserContext, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case, Skip
from llmk_testing.parsers import Answer, Factory

_OPEN: tuple[Mapping[str, Any], ...] = (
    {"properties": {"text": {"type": "string"}}},
    {"properties": {"text": {"type": "string"}}, "additionalProperties": True},
    {"properties": {"text": {"type": "string"}}, "additionalProperties": {"type": "string"}, "required": ["text"]},
    {"properties": {"text": {"type": "string"}}, "patternProperties": {"^e": {"type": "string"}}},
    {"properties": {}},
    {},
)
"""Schemas that allow arguments which they don't name."""
_TYPED: tuple[tuple[str, Mapping[str, Any], Any], ...] = (
    ("as_text", {"type": "string"}, "5"),
    ("as_count", {"type": "integer"}, 5),
    ("as_flag", {"type": "boolean"}, True),
    ("as_word", {"type": "string"}, "true"),
    ("as_list", {"type": "array", "items": {"type": "integer"}}, [5]),
    ("as_note", {"type": "string"}, "[5]"),
)
"""Tools whose only argument has one name, its schemas, and values."""


def tool_cases(spec: ParserSpec, made: Callable[[ParserContext], Factory], case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    yield case("arguments that a schema allows and does not name come back", check_unnamed, spec, made)
    yield case("arguments that are not written are not filled in", check_defaults, spec, made)
    yield case("each tool's own schema types its arguments", check_typed, spec, made)
    yield case("calls that are not as the tools say are not lost", check_others, spec, made)


def check_unnamed(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """Of schemas that say so, or say nothing of further arguments."""
    for schema in _OPEN:
        for arguments in ({"text": "a", "extra": "b"}, {"extra": "b", "else": "c d"}, {"extra": "b"}):
            tool = {"name": "say_it", "parameters": {"type": "object", **schema}}
            text, answer = _parsed(spec, made(ParserContext(tools=(tool,))), "say_it", arguments)
            _check_same(answer, "say_it", arguments, f"{text!r} of a tool with {schema}")
    return f"{len(_OPEN)} schemas"


def check_defaults(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> None:
    """The client knows the defaults, and what is required is its to judge."""
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer", "default": 3},
        "unit": {"enum": ["c"], "default": "c"},
        "note": {"type": ["string", "null"]},
        "tags": {"type": "array"},
    }
    for required in ([], ["text"], ["text", "count", "note"]):
        tool = {"name": "say_it", "parameters": {"type": "object", "properties": properties, "required": required}}
        for arguments in ({"text": "a"}, {}, {"unit": "c"}, {"text": ""}):
            text, answer = _parsed(spec, made(ParserContext(tools=(tool,))), "say_it", arguments)
            _check_same(answer, "say_it", arguments, f"{text!r} of a tool with {properties}")


def check_typed(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> None:
    """The same name has another type in each, in any order of the tools, and in calls of one answer."""
    tools = [{"name": name, "parameters": _one(schema)} for name, schema, _ in _TYPED]
    for order in (tools, tools[::-1]):
        make = made(ParserContext(tools=order))
        for name, _, value in _TYPED:
            text, answer = _parsed(spec, make, name, {"value": value})
            _check_same(answer, name, {"value": value}, repr(text))
        calls = [WrittenCall(name, {"value": value}, f"call_{name}") for name, _, value in _TYPED]
        text = _writer(spec).render(calls)
        found = [(call.name, json.loads(call.arguments)) for call in parsers.parse(make, [text]).calls]
        assert found == [(name, {"value": value}) for name, _, value in _TYPED], f"{found} are the calls of {text!r}"


def check_others(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> None:
    """Of a tool that the request has not, and with values of other types than it says: a call, or text."""
    tool = {"name": "say_it", "parameters": _one({"type": "integer"})}
    make = made(ParserContext(tools=(tool,)))
    for name, value in (("other", 5), ("say", 5), ("say_it_", 5), ("SAY_IT", 5), *(("say_it", one) for one in _WRONG)):
        text, answer = _parsed(spec, make, name, {"value": value})
        kept = [call.name for call in answer.calls] == [name] or (not answer.calls and name in answer.content)
        assert kept, f"{text!r} comes back as {answer}"
        for call in answer.calls:
            parsers.check_json(call)
            assert json.loads(call.arguments).keys() == {"value"}, f"{text!r} comes back as {answer}"


_WRONG: tuple[Any, ...] = ("five", "", "5 6", 5.5, None, True, [5], {"a": 5}, -1, 10**30)


def _one(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}


def _parsed(spec: ParserSpec, make: Factory, name: str, arguments: Mapping[str, Any]) -> tuple[str, Answer]:
    """The text of a call, and what becomes of it."""
    try:
        text = _writer(spec).render([WrittenCall(name, dict(arguments), "call_x")])
    except (RequestError, ValueError) as error:
        raise Skip(f"its writer does not render {arguments}: {error}") from error
    return text, parsers.check_chunking(make, text, rounds=0)


def _check_same(answer: Answer, name: str, arguments: Mapping[str, Any], text: str) -> None:
    found = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    assert found == [(name, arguments)], f"{found} are the calls, expected {name} with {arguments}: {text}"


def _writer(spec: ParserSpec) -> CallWriter:
    writer: CallWriter = load_object(spec.writer)
    return writer
