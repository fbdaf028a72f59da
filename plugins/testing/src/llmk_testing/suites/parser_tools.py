"""Cases of calls that are not all that the request's tools say: with further arguments, of other tools, without
arguments that have a default, and of tools that type one name in several ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmk.api import CallWriter, ParserContext, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case, Skip
from llmk_testing.parser_example import ParserExample
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
    ("as_level", {"enum": [1, 5]}, 5),
    ("as_code", {"enum": ["1", "5"]}, "5"),
    ("as_constant", {"const": "5"}, "5"),
    ("as_maybe", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
    ("as_words", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "5"),
    ("as_one", {"oneOf": [{"type": "null"}, {"type": "integer"}]}, 5),
    ("as_all", {"allOf": [{"type": "integer"}]}, 5),
    ("as_both", {"type": ["null", "integer"]}, 5),
    ("as_share", {"type": "number"}, 5),
    ("as_nested", {"type": "object", "properties": {"value": {"type": "string"}}}, {"value": "5"}),
    ("as_texts", {"type": "array", "items": {"type": "string"}}, ["5", "true"]),
)
"""Tools whose only argument has one name, its schemas, and values."""


def tool_cases(
    spec: ParserSpec,
    made: Callable[[ParserContext], Factory],
    answered: Callable[[], Sequence[ParserExample]],
    case: Callable[..., Case],
) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    name = "arguments that a schema allows and does not name come back, unless an example says otherwise"
    yield case(name, check_unnamed, spec, made, answered)
    yield case("arguments that are not written are not filled in", check_defaults, spec, made)
    yield case("each tool's own schema types its arguments", check_typed, spec, made)
    name = "calls that are not as the tools say are not lost, unless an example says so"
    yield case(name, check_others, spec, made, answered)


def check_unnamed(
    spec: ParserSpec, made: Callable[[ParserContext], Factory], answered: Callable[[], Sequence[ParserExample]]
) -> str:
    """Of schemas that say so, or say nothing of further arguments."""
    if any(_lost_arguments(made, one) for one in answered()):
        return "an example says that they are dropped"
    for schema in _OPEN:
        for arguments in ({"text": "a", "extra": "b"}, {"extra": "b", "else": "c d"}, {"extra": "b"}):
            tool = {"name": "say_it", "parameters": {"type": "object", **schema}}
            text, answer = _parsed(spec, made(ParserContext(tools=(tool,))), "say_it", arguments)
            _check_same(answer, "say_it", arguments, f"{text!r} of a tool with {schema}")
    return f"{len(_OPEN)} schemas"


def check_defaults(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> None:
    """The client knows the defaults. What lacks a required argument may be text."""
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
            refused = not answer.calls and "say_it" in answer.content and not arguments.keys() >= set(required)
            if not refused:
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


def check_others(
    spec: ParserSpec, made: Callable[[ParserContext], Factory], answered: Callable[[], Sequence[ParserExample]]
) -> None:
    """Of a tool that the request has not, and with values of other types than it says: a call, or text."""
    dropped = any(_lost_calls(made, one) for one in answered())
    tool = {"name": "say_it", "parameters": _one({"type": "integer"})}
    make = made(ParserContext(tools=(tool,)))
    for name, value in (("other", 5), ("say", 5), ("say_it_", 5), ("SAY_IT", 5), *(("say_it", one) for one in _WRONG)):
        text, answer = _parsed(spec, make, name, {"value": value})
        said = name in answer.content or (dropped and name != "say_it")
        kept = [call.name for call in answer.calls] == [name] or (not answer.calls and said)
        assert kept, f"{text!r} comes back as {answer}"
        for call in answer.calls:
            parsers.check_json(call)
            assert json.loads(call.arguments).keys() == {"value"}, f"{text!r} comes back as {answer}"


def _lost_arguments(made: Callable[[ParserContext], Factory], one: ParserExample) -> bool:
    """Whether an example has a call without arguments that it has where the request has no tools."""
    bare = parsers.parse(made(ParserContext()), [one.text]).calls if one.context.tools else []
    pairs = zip(bare, one.calls, strict=False)
    return any(not json.loads(call.arguments).keys() <= arguments.keys() for call, (_, arguments) in pairs)


def _lost_calls(made: Callable[[ParserContext], Factory], one: ParserExample) -> bool:
    """Whether an example has neither a call nor the text of one that it has where the request has no tools."""
    bare = parsers.parse(made(ParserContext()), [one.text]).calls if one.context.tools else []
    names = {tool["name"] for tool in one.context.tools}
    return any(call.name not in names and call.name not in one.content for call in bare)


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
