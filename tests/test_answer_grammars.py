"""Grammars of chat answers: calls that must come, content that must match, and reasoning before both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLMatcher

from llmk.api import GrammarContext, RequestError
from llmk.config import Config
from llmk.engine.text.grammars import GrammarChecker
from llmk.engine.wire.grammar_params import GrammarParams
from llmk.kernel.registry import Registry
from llmk.planning.choices.grammars import choose_grammar
from llmk.serve.generation.output_grammar import as_grammar
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.generation.request_grammars import RequestGrammars
from llmk.serve.protocol.chat import ChatRequest
from llmk_grammar.compiler import Compiler, _grammar
from llmk_parsers.reasoning.deepseek_r1 import DeepSeekR1
from llmk_parsers.tools.hermes import WRITER, Hermes

SPECIAL = 256
"""The id of a special token, which is written as <special>, behind the 256 bytes."""
THINK = ("<think>", "</think>")


class Bytes:
    """A tokenizer of bytes."""

    def control_id(self, text: str) -> int | None:
        return SPECIAL if text == "<special>" else None


@pytest.fixture(scope="module")
def checker() -> GrammarChecker:
    config = Config()
    return GrammarChecker(choose_grammar(Registry.discover(config.plugins), config)[0], config)


@pytest.fixture(scope="module")
def matches() -> Callable[..., bool | None]:
    """Whether a grammar matches tokens: the start of a match is None."""
    context = GrammarContext(
        [bytes([byte]) for byte in range(256)] + [b"<special>"], frozenset({SPECIAL}), lambda text: list(text.encode())
    )
    compiler = Compiler(context)

    def matches(grammar: GrammarParams | None, text: str) -> bool | None:
        assert grammar is not None
        compiler.compile(grammar.kind, grammar.text)
        matcher = LLMatcher(compiler._tokenizer, _grammar(grammar.kind, grammar.text))
        for part in text.partition("<special>"):
            for token in [SPECIAL] if part == "<special>" else list(part.encode()):
                if not matcher.validate_tokens([token]):
                    return False
                matcher.consume_token(token)
        return True if matcher.is_accepting() else None

    return matches


def tool(name: str, strict: bool = False, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


WEATHER = tool("weather", city={"type": "string"})
ADD = tool("add", a={"type": "integer"}, b={"type": "integer"})


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def made(
    checker: GrammarChecker, *, tail: str = "", thinking: bool | None = None, markers: Any = ("", ""), **body: Any
) -> GrammarParams | None:
    request = ChatRequest(**{"messages": [{"role": "user", "content": "hi"}], **body})
    dialect = Dialect(ParserKind("t.r", DeepSeekR1, markers=markers), ParserKind("t.h", Hermes, writer=WRITER))
    grammars: Any = RequestGrammars(checker, dialect, Bytes())  # type: ignore[arg-type]
    found: GrammarParams | None = grammars.answer(request, request.offered_tools, tail, thinking, [])
    return found


OSLO = written("weather", '{"city": "Oslo"}')
SUM = written("add", '{"a": 1, "b": 2}')


@pytest.mark.parametrize(
    ("choice", "parallel", "text", "expected"),
    [
        ("required", True, OSLO, True),
        ("required", True, f"{OSLO}\n{SUM}", True),
        ("required", False, f"{OSLO}\n{SUM}", False),
        ("required", True, "It is sunny.", False),
        ("required", True, written("weather", '{"town": "Oslo"}'), False),
        ("required", True, written("moon", "{}"), False),
        ("required", True, OSLO[:-3], None),
        ({"type": "function", "function": {"name": "add"}}, True, SUM, True),
        ({"type": "function", "function": {"name": "add"}}, True, OSLO, False),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            True,
            SUM,
            False,
        ),
    ],
)
def test_calls_that_must_come(
    checker: GrammarChecker, matches: Any, choice: Any, parallel: bool, text: str, expected: bool | None
) -> None:
    grammar = made(checker, tools=[WEATHER, ADD], tool_choice=choice, parallel_tool_calls=parallel)
    assert matches(grammar, text) is expected


def test_without_strict_tools_nothing_is_enforced(checker: GrammarChecker) -> None:
    assert made(checker, tools=[WEATHER, ADD]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Just text, with < and <tool_cal.", True),
        (f"Let me look.\n{OSLO}", True),
        (f"{OSLO}\nand {SUM} then", True),
        (written("weather", '{"city": 3}'), False),
        (f"{OSLO} {written('weather', '{}')}", False),
    ],
)
def test_arguments_of_strict_tools_are_enforced_in_free_text(
    checker: GrammarChecker, matches: Any, text: str, expected: bool | None
) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    assert matches(made(checker, tools=[strict, ADD]), text) is expected


@pytest.mark.parametrize(
    ("tail", "thinking", "text", "expected"),
    [
        ("<think>\n", None, '4 < 5</think>\n\n{"a": 1}', True),
        ("<think>\n", None, '{"a": 1}', None),
        ("assistant\n", None, '<think>so</think>{"a": 1}', True),
        ("assistant\n", None, '{"a": 1}', True),
        ("assistant\n", False, '<think>so</think>{"a": 1}', False),
        ("<think>\n\n</think>\n\n", True, '{"a": 1}', True),
        ("<think>\n\n</think>\n\n", True, '<think>{"a": 1}', False),
    ],
)
def test_content_comes_right_behind_reasoning(
    checker: GrammarChecker, matches: Any, tail: str, thinking: bool | None, text: str, expected: bool | None
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    grammar = made(checker, tail=tail, thinking=thinking, markers=THINK, response_format=form)
    assert matches(grammar, text) is expected


def test_special_tokens_are_tokens_not_text(checker: GrammarChecker, matches: Any) -> None:
    grammar = made(checker, tail="<t>", markers=("<t>", "<special>"), guided_choice=["yes", "no"])
    assert matches(grammar, "thought<special>no") is True
    assert matches(grammar, "thought<special>maybe") is False


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"guided_regex": "^[a/b]+\\/\n?$"}, "ab/", "c"),
        ({"structured_outputs": {"regex": r"a\$"}}, "a$", "a"),
        ({"guided_choice": ['say "hi"', "a/b"]}, 'say "hi"', "hi"),
        ({"guided_json": {"type": "array", "items": {"type": "integer"}}}, "[1, 2]", '["a"]'),
        ({"guided_json": True}, '{"a": [null]}', "a"),
        ({"structured_outputs": {"json_object": True}}, '{"a": 1}', "[1]"),
        ({"response_format": {"type": "json_object"}}, "{}", "1"),
        ({"guided_grammar": 'start: "a" start_b\nstart_b: "b"'}, "ab", "b"),
        ({"structured_outputs": {"grammar": "%llguidance {}\nstart: /[0-9]+/"}}, "12", "a"),
    ],
)
@pytest.mark.parametrize("reasoning", [False, True])
def test_each_field_with_and_without_reasoning(
    checker: GrammarChecker, matches: Any, fields: dict[str, Any], good: str, bad: str, reasoning: bool
) -> None:
    grammar = made(checker, tail="<think>" if reasoning else "", markers=THINK if reasoning else ("", ""), **fields)
    before = "hm</think>" if reasoning else ""
    assert matches(grammar, before + good) is True
    assert matches(grammar, before + bad) is not True


def test_content_may_be_a_call_where_both_may_come(checker: GrammarChecker, matches: Any) -> None:
    grammar = made(checker, tools=[WEATHER], guided_choice=["none"])
    assert matches(grammar, "none") is True
    assert matches(grammar, OSLO) is True
    assert matches(grammar, f"none{OSLO}") is False


def test_structural_tags(matches: Any) -> None:
    tags = {
        "structures": [{"begin": "<function=f>", "schema": {"type": "object"}, "end": "</function>"}],
        "triggers": ["<function="],
    }
    grammar = GrammarParams(**as_grammar({"structural_tag": json.dumps(tags)}))
    assert matches(grammar, "free <function=f>{}</function> free") is True
    assert matches(grammar, "free <function=g>") is False


def test_structural_tags_behind_reasoning(checker: GrammarChecker, matches: Any) -> None:
    tags = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f>"]}
    grammar = made(checker, tail="<think>", markers=THINK, structured_outputs={"structural_tag": tags})
    assert matches(grammar, "well</think>free <f>{}</f> free") is True
    assert matches(grammar, "well</think><f>[") is False


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}},
            "response_format",
            "response_format: the json can't be used",
        ),
        ({"guided_json": {"type": "object"}, "guided_regex": "a"}, "guided_regex", "can't both be given"),
        ({"structured_outputs": {"structural_tag": {"triggers": []}}}, "structured_outputs", "have the form"),
        ({"guided_grammar": "start: missing"}, "guided_grammar", "guided_grammar: the lark can't be used"),
        (
            {
                "structured_outputs": {
                    "structural_tag": {
                        "triggers": ["<"],
                        "structures": [{"begin": "<", "schema": {"not": {}}, "end": ">"}],
                    }
                }
            },
            "structured_outputs",
            "the lark can't be used: not can't be enforced",
        ),
        (
            {"tools": [tool("f", strict=True, x={"type": "string", "pattern": "(?=a)"})]},
            "tools",
            "the strict tool 'f'",
        ),
    ],
)
def test_errors_name_the_field(checker: GrammarChecker, fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=r".") as caught:
        made(checker, **fields)
    assert caught.value.param == param
    assert message in caught.value.message


def test_of_what_can_not_be_enforced_names_are_left(checker: GrammarChecker, matches: Any) -> None:
    odd = tool("f", x={"type": "string", "pattern": "(?=a)"})
    grammar = made(checker, tools=[odd], tool_choice="required")
    assert matches(grammar, written("f", '{"x": 1}')) is True
    assert matches(grammar, written("f", "{}")) is False, "it is required"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "required"}, "'tools' is empty"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "there is no tool 'sub' (tools: add)",
        ),
    ],
)
def test_choices_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ChatRequest(messages=[{"role": "user", "content": "hi"}], **fields)
    assert message in str(caught.value)
