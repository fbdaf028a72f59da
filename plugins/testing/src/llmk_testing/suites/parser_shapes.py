"""Cases of a dialect's writer and grammar: calls of many tools and arguments, of arguments with odd names, and texts
next to those that it renders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from llmk.api import CallWriter, ParserContext, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case, Skip
from llmk_testing.parsers import Factory
from llmk_testing.suites.parser_grammar import TOOLS, Grammar, Unreadable
from llmk_testing.suites.parser_schemas import NOTES_OF_ALL
from llmk_testing.written_calls import tools

_ARGUMENTS = (
    *("name", "arguments", "parameters", "id", "type", "function", "value", "key", "args", "tool", "call", "text"),
    *(
        "A",
        "CamelCase",
        "snake_case",
        "kebab-case",
        "x1",
        "_x",
        "größe",
        "名前",
        "dotted.name",
        "two words",
        "1",
        "true",
    ),
    *("null", "class", "@type", "$ref", "#", "a/b", "a:b", "a=b", "it's", 'a"b', "a\\b", "{x}", "[0]", "é", "None"),
)
"""Names of arguments, of which a dialect may refuse some: they may be the dialect's own words, or need escapes."""
_COMMON = _ARGUMENTS[:17]
_TOOL_NAMES = (
    ("a.b", "axb"),
    ("a-c", "abc"),
    ("a_b", "a-b"),
    ("ab", "a"),
    ("a", "ab"),
    ("a.b-c_d", "a.bxc_d"),
    ("A", "a"),
)
"""Names of tools, and names that are others."""
_MOST = 13
"""Tools, and arguments of each: more than have one digit."""


def shape_cases(
    spec: ParserSpec, made: Callable[[ParserContext], Factory], case: Callable[..., Case]
) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    yield case("arguments of any name come back, or are refused", check_names, spec, made)
    yield case("its writer's grammar knows tools by their whole names", check_tool_names, spec)
    yield case("its writer leaves calls and tools as they are", check_kept, spec)
    yield case("its writer's grammar knows many tools with many arguments apart", check_many, spec, made)
    yield case("white space that its writer's grammar allows is read", check_space, spec, made)


def check_names(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """In calls, and in the grammar of their tools."""
    writer, refused = _writer(spec), list[str]()
    for name in _ARGUMENTS:
        arguments = {name: 3, f"{name}s": 4}
        schema = {key: {"type": "integer"} for key in arguments}
        closed = {"required": [*arguments], "additionalProperties": False}
        tool = {"name": "say_it", "parameters": {"properties": schema, **closed}}
        text = _rendered(writer, "say_it", arguments)
        if text is None:
            refused.append(name)
            continue
        _check_same(made(ParserContext(tools=(tool,))), "say_it", arguments, text)
        try:
            grammar = Grammar(writer, many=False, tools=[tool])
        except (Unreadable, RequestError, ValueError):
            refused.append(name)
            continue
        assert grammar.allows(text), f"{text!r} is refused by the grammar of its tool"
        for other in ({f"{name}x": 3, f"{name}s": 4}, {name: 3, name.swapcase() + "_": 4}):
            if (wrong := _rendered(writer, "say_it", other)) is not None:
                assert not grammar.allows(wrong), f"{wrong!r} is allowed by the grammar of a tool with {[*arguments]}"
    missed = [name for name in _COMMON if name in refused]
    assert not missed, f"arguments of the names {missed} are refused"
    return f"{len(refused)} of {len(_ARGUMENTS)} names are refused"


def check_tool_names(spec: ParserSpec) -> str:
    """What is a mark in a rule stands for itself in a name."""
    writer, count = _writer(spec), 0
    for name, other in _TOOL_NAMES:
        tool = {"name": name, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
        try:
            grammar = Grammar(writer, many=False, tools=[tool])
        except (RequestError, ValueError):
            continue
        right, wrong = (_rendered(writer, each, {}) for each in (name, other))
        if right is not None and wrong is not None:
            assert grammar.allows(right), f"{right!r} is refused by the grammar of {name!r}"
            assert not grammar.allows(wrong), f"{wrong!r} is allowed by the grammar of {name!r}"
            count += 1
    return f"{count} names"


def check_kept(spec: ParserSpec) -> None:
    """They belong to the request, and are rendered again with the next one."""
    writer = _writer(spec)
    for arguments in ({}, {"text": "x", "note": None}, {"names": ["b", "a"], "free": {"k": {"b": 1, "a": [None]}}}):
        calls = [WrittenCall("say_it", deepcopy(arguments), "call_x")]
        texts = {_rendered(writer, "say_it", calls[0].arguments), *(writer.render(calls) for _ in range(2))}
        kept = [*calls[0].arguments.items()] == [*arguments.items()] and len(texts) == 1
        assert kept, f"a call with {arguments} has {calls[0].arguments} when it was rendered as {texts}"
    noted = [{**tool, "strict": True, "parameters": {**tool["parameters"], **NOTES_OF_ALL}} for tool in TOOLS]
    for asked in (TOOLS, tools(), noted):
        given = deepcopy(asked)
        for many in (False, True):
            try:
                grammars = {writer.grammar(given, many=many, marker=json.dumps) for _ in range(2)}
            except (RequestError, ValueError):
                continue
            assert len(grammars) == 1, f"two grammars of the same tools: {grammars}"
        assert given == asked, f"tools {asked} are {given} when their grammar was written"


def check_many(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """Each argument of each tool has its own schema, and each tool its own arguments."""
    writer = _writer(spec)
    asked = [_tool(number) for number in range(_MOST)]
    grammar = Grammar(writer, many=True, tools=asked)
    make = made(ParserContext(tools=asked))
    for number, tool in enumerate(asked):
        arguments = {name: schema["const"] for name, schema in tool["parameters"]["properties"].items()}
        text = _rendered(writer, tool["name"], arguments)
        if text is None:
            raise Skip("its writer does not render calls of numbers")
        assert grammar.allows(text), f"{text!r} is refused by the grammar of {_MOST} tools"
        _check_same(make, tool["name"], arguments, text)
        wrong = [{**arguments, name: value + 1} for name, value in arguments.items()]
        wrong += [{name: schema["const"] for name, schema in _properties(number + 1).items()}]
        for each in (wrong[0], wrong[number], *wrong[-2:]):
            other = _rendered(writer, tool["name"], each)
            assert other is None or not grammar.allows(other), f"{other!r} is allowed by the grammar of {_MOST} tools"
    return f"{_MOST} tools"


def _properties(number: int) -> dict[str, Any]:
    return {f"a{number}{at}": {"const": 1000 * number + 2 * at} for at in range(_MOST)}


def _tool(number: int) -> dict[str, Any]:
    properties = _properties(number)
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"name": f"t{number}", "description": "", "parameters": schema}


def check_space(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """Where one more space, tab or line break is allowed, the text is a call all the same, and nothing else."""
    writer, count = _writer(spec), 0
    make = made(ParserContext(tools=TOOLS))
    grammar = Grammar(writer, many=True)
    arguments = {"city": "Oslo", "days": 3, "at": {"x": 1.5}, "tags": ["a", "b"]}
    for text in filter(None, (_rendered(writer, "weather", arguments), _rendered(writer, "now", {}))):
        for at in range(len(text) + 1):
            for space in (" ", "\n", "\t"):
                changed = text[:at] + space + text[at:]
                if grammar.allows(changed):
                    answer = parsers.parse(make, [changed])
                    read = len(answer.calls) == 1 and not answer.content
                    assert read, f"{changed!r}, which the grammar allows, comes back as {answer}"
                    again = writer.render(
                        [WrittenCall(answer.calls[0].name, json.loads(answer.calls[0].arguments), "x")]
                    )
                    assert grammar.allows(again), f"{changed!r} is read as {again!r}, against the grammar"
                    count += 1
    return f"{count} texts"


def _check_same(make: Factory, name: str, arguments: Mapping[str, Any], text: str) -> None:
    calls = parsers.check_chunking(make, text, rounds=0).calls
    found = [(call.name, json.loads(call.arguments)) for call in calls]
    assert found == [(name, arguments)], f"{text!r} comes back as {found}"


def _writer(spec: ParserSpec) -> CallWriter:
    writer: CallWriter = load_object(spec.writer)
    return writer


def _rendered(writer: CallWriter, name: str, arguments: Mapping[str, Any]) -> str | None:
    try:
        return writer.render([WrittenCall(name, dict(arguments), "call_x")])
    except (RequestError, ValueError):
        return None
