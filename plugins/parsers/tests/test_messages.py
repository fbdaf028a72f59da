"""Dialects whose calls stand in messages, elements and tags with suffixes, and what the options of templates say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dialects import Chain, make

from llmk.api import ParserContext
from llmk_testing.parsers import check_chunking

TOOLS: list[dict[str, Any]] = [
    {"name": "find", "parameters": {"properties": {"q": {"type": "string"}, "n": {"type": "integer"}}}},
    {"name": "now", "parameters": {"properties": {}}},
]
Calls = list[tuple[str, dict[str, Any]]]
_XML = "<|start|>assistant to=find<|channel|>analysis <|constrain|>xml<|message|>"
_K2 = "<ifm|tool_calls><ifm|tool_call>{}</ifm|tool_call></ifm|tool_calls>"
_K2_TYPED = "find<ifm|arg_key>n</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type><ifm|arg_value>2</ifm|arg_value>"
_K2_PAIRS = _K2_TYPED.replace("<ifm|arg_type>integer</ifm|arg_type>", "")
_K3 = '<|open|>tools<|sep|><|open|>call tool="find" index="1"<|sep|>{}<|close|>call<|sep|><|close|>tools<|sep|>'
_K3_N = '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>'
_SOLAR = "<|tool_call:start|>find\n<|tool_arg:start|>q<|tool_arg:value|> x\n<|tool_arg:end|>\n<|tool_call:end|>"
_HY_ARGUMENT = "<arg_key{0}>q</arg_key{0}><arg_value{0}>x</arg_value{0}>"
_HY = f"<tool_calls{{0}}><tool_call{{0}}>find<tool_sep{{0}}>{_HY_ARGUMENT}</tool_call{{0}}>"
CASES: dict[str, tuple[str, dict[str, Any], str, tuple[str, str, Calls]]] = {
    "a name before a call is no text": (
        "inkling",
        {},
        'find<|content_invoke_tool_json|>{"name": "find", "args": {"q": "}"}}<|end_message|>',
        ("", "", [("find", {"q": "}"})]),
    ),
    "text without a marker": ("inkling", {}, "Hello<|end_message|>", ("", "Hello", [])),
    "thoughts, text and a call": (
        "inkling",
        {},
        "<|content_thinking|>Hm.\n<|end_message|><|message_model|><|content_text|>A<|end_message|><|message_model|>"
        '<|content_invoke_tool_json|>{"name": "now"}<|content_model_end_sampling|>',
        ("Hm.", "A", [("now", {})]),
    ),
    "arguments that are not JSON": (
        "inkling",
        {},
        '<|content_invoke_tool_json|>{"name": "find", "args": {"q": x}}<|end_message|>',
        ("", '<|content_invoke_tool_json|>{"name": "find", "args": {"q": x}}<|end_message|>', []),
    ),
    "a call in the channel of thoughts": (
        "beam",
        {},
        f'<|channel|>analysis<|message|>Hm.<|end|>{_XML}<rfl:parameter name="n">\n1\n</rfl:parameter><|call|>',
        ("Hm.", "", [("find", {"n": 1})]),
    ),
    "an answer that ends as a call does": ("beam", {}, "<|channel|>final<|message|>A<|call|>", ("", "A", [])),
    "a call without the end of its message": (
        "beam",
        {},
        f'{_XML}<rfl:parameter name="q">x',
        ("", f'{_XML}<rfl:parameter name="q">x', []),
    ),
    "pairs": ("k2_horizon", {}, f"</ifm|think>{_K2.format(_K2_PAIRS)}", ("", "", [("find", {"n": 2})])),
    "typed pairs": (
        "k2_horizon",
        {"tool_call_format": "xml_typed"},
        f"a</ifm|think>{_K2.format(_K2_TYPED)}",
        ("a", "", [("find", {"n": 2})]),
    ),
    "an object, typed by the schema": (
        "k2_horizon",
        {"tool_call_format": "json"},
        "a</ifm|think>" + _K2.format('{"name": "find", "arguments": {"n": "2"}}'),
        ("a", "", [("find", {"n": 2})]),
    ),
    "an object where pairs are": (
        "k2_horizon",
        {},
        "</ifm|think>" + _K2.format('{"name": "find"}'),
        ("", _K2.format('{"name": "find"}'), []),
    ),
    "an unknown tool": ("k2_horizon", {}, "</ifm|think>" + _K2.format("other"), ("", _K2.format("other"), [])),
    "a list of calls ends thoughts": ("k2_horizon", {}, "a" + _K2.format(_K2_PAIRS), ("a", "", [("find", {"n": 2})])),
    "the prompt opened the thoughts": (
        "kimi_k3",
        {},
        f"Hm.<|close|>think<|sep|><|open|>response<|sep|>A<|close|>response<|sep|>{_K3.format(_K3_N)}<|close|>message<|sep|>",
        ("Hm.", "A", [("find", {"n": 3})]),
    ),
    "no thoughts": ("kimi_k3", {"thinking": False}, "A<|close|>response<|sep|>", ("", "A", [])),
    "the text of a value is kept": ("solar_open2", {}, f"a<|think:end|>{_SOLAR}", ("a", "", [("find", {"q": " x\n"})])),
    "thoughts are off": (
        "solar_open2",
        {"reasoning_effort": "low"},
        f"A{_SOLAR}",
        ("", "A", [("find", {"q": " x\n"})]),
    ),
    "tags with a suffix": ("hy_v3", {}, _HY.format(":opensource"), ("", "", [("find", {"q": "x"})])),
    "tags without one": (
        "hy_v4",
        {},
        f"Hm.</think:1f>{_HY.format('').replace('<tool_sep>', '')}",
        ("Hm.", "", [("find", {"q": "x"})]),
    ),
    "no effort": ("hy_v4", {"reasoning_effort": "no_think"}, "A", ("", "A", [])),
}


@pytest.mark.parametrize("case", CASES)
def test_messages(case: str) -> None:
    name, options, text, (reasoning, content, calls) = CASES[case]
    context = ParserContext(tools=TOOLS, template_options=options)
    answer = check_chunking(lambda: Chain([make(f"reasoning/{name}", context), make(f"tools/{name}", context)]), text)
    got = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    assert (answer.reasoning, answer.content, got) == (reasoning, content, calls)


@pytest.mark.parametrize("size", [200, 255, 256, 257, 300, 600])
@pytest.mark.parametrize("name", ["muse", "beam", "openai"])
def test_a_header_of_any_length_is_read_alike(name: str, size: int) -> None:
    text = f"<|start|>assistant to=find{'x' * size}<|message|>a<|end|><|eom|><|start|>assistant<|message|>b"
    check_chunking(lambda: make(f"tools/{name}"), text, rounds=20)
