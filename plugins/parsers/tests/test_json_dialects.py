"""What dialects whose calls are JSON have around them."""

from __future__ import annotations

import json

import pytest
from dialects import SPECS, examples, make

from llmk.api import ParserContext
from llmk_testing.parsers import Answer, check_chunking

CALL = '{"name": "f", "arguments": {"x": 1}}'
OTHER = '{"name": "g", "arguments": {}}'
BAD = '{"name": 7, "arguments": {}}'
COHERE = CALL.replace("name", "tool_name").replace("arguments", "parameters")
F, G = ("f", '{"x": 1}'), ("g", "{}")


def read(text: str, dialect: str) -> Answer:
    return check_chunking(lambda: make(f"tools/{dialect}", ParserContext()), text, rounds=16)


CASES = {
    "granite": ("granite", f"A\n<|tool_call|> [{CALL}, {OTHER}]\nB", "A\n\nB", [F, G]),
    "granite 3.1": ("granite", f"<tool_call>[{CALL}]", "", [F]),
    "granite, one object": ("granite", f"<|tool_call|>{CALL} B", " B", [F]),
    "granite, no list": ("granite", "<|tool_call|> B", "<|tool_call|> B", []),
    "granite, the first is bad": ("granite", f"<|tool_call|>[{BAD}, {CALL}]B", f"<|tool_call|>[{BAD}B", [F]),
    "granite, the last is bad": ("granite", f"<|tool_call|>[{CALL}, {BAD}]B", f"{BAD}B", [F]),
    "granite, all are bad": ("granite", f"<|tool_call|>[{BAD}]B", f"<|tool_call|>[{BAD}]B", []),
    "granite-20b-fc": ("granite-20b-fc", f"A<function_call> {CALL}<function_call>{OTHER}B", "AB", [F, G]),
    "granite-20b-fc, an object behind": ("granite-20b-fc", f"<function_call>{CALL}{OTHER}", OTHER, [F]),
    "granite4": ("granite4", f"A\n<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call> B", "A\n\n B", [F, G]),
    "granite4, calls alone": (
        "granite4",
        f"<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call>\n",
        "",
        [F, G],
    ),
    "jamba": ("jamba", f" <tool_calls>[\n  {CALL},\n  {OTHER}\n]</tool_calls>", "", [F, G]),
    "minimax": ("minimax", f"A\n<tool_calls>\n{CALL}\n{OTHER}\n</tool_calls>\nB", "A\n\nB", [F, G]),
    "hunyuan_a13b": ("hunyuan_a13b", f"A <tool_calls>[{CALL}]</tool_calls>", "A ", [F]),
    "hunyuan_a13b, role": ("hunyuan_a13b", "助手：你好", "你好", []),
    "hunyuan_a13b, part of the role": ("hunyuan_a13b", "助手", "助手", []),
    "hunyuan_a13b, thought": (
        "hunyuan_a13b",
        f"<think>No <tool_calls>[{CALL}]</tool_calls></think>B<tool_calls>[{OTHER}]</tool_calls>",
        f"<think>No <tool_calls>[{CALL}]</tool_calls></think>B",
        [G],
    ),
    "internlm": ("internlm", f"A<|action_start|><|plugin|>\n{CALL}<|action_end|>\n", "A", [F]),
    "internlm, two": (
        "internlm",
        f"<|action_start|> <|plugin|>{CALL}<|action_end|>\n<|action_start|><|plugin|>{OTHER}<|action_end|>",
        "",
        [F, G],
    ),
    "internlm, code": ("internlm", "<|action_start|><|interpreter|>1<|action_end|>", None, []),
    "internlm, marker cut off": ("internlm", "<|action_start|><|plug", None, []),
    "phi4_mini_json": ("phi4_mini_json", f"A\nfunctools[{CALL}, {OTHER}]\nB", "A\n\nB", [F, G]),
    "phi4_mini_json, the word": ("phi4_mini_json", "functools[lru_cache] is", None, []),
    "phi4_mini": ("phi4_mini", f"A<|tool_call|>[{CALL}]<|/tool_call|>", "A", [F]),
    "gigachat3": ("gigachat3", f"A<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}", "A", [F]),
    "gigachat3.1": ("gigachat3", f"A<|function_call|>{CALL}</s>", "A", [F]),
    "gigachat3, text": ("gigachat3", "<s>A</s>", "<s>A</s>", []),
    "nemotron_json": ("nemotron_json", f"A<TOOLCALL>[{CALL}, {OTHER}]</TOOLCALL>B", "AB", [F, G]),
    "pangu": ("pangu", f"A[unused11][{CALL}][unused12]", "A", [F]),
    "hyperclovax": ("hyperclovax", f"A -> tool/function_call\n[{CALL}, {OTHER}]", "A", [F, G]),
    "cohere_command3": (
        "cohere_command3",
        f'<|START_ACTION|>[{{"tool_call_id": "0", {COHERE[1:]},\n{OTHER}]<|END_ACTION|>',
        "",
        [F, G],
    ),
    "cohere_command3, text": ("cohere_command3", "<|START_RESPONSE|>A<|END_RESPONSE|>", "A", []),
    "cohere_command4, text": ("cohere_command4", "<|START_TEXT|>A<|END_TEXT|>", "A", []),
    "cohere_command_r": ("cohere_command_r", f"Plan.\nAction: ```json\n[\n  {COHERE}\n]\n```", "Plan.\n", [F]),
    "cohere_command_r, text": ("cohere_command_r", "Action: none.", "Action: none.", []),
    "functionary": ("functionary", '<function=f>{"x": 1}</function><function=g>{}</function>', "", [F, G]),
    "functionary, no object": ("functionary", "<function=f>x</function>", "<function=f>x</function>", []),
    "functionary, no name": ("functionary", "<function=>{}</function>", "<function=>{}</function>", []),
    "xlam": ("xlam", f"[{CALL}, {OTHER}]", "", [F, G]),
    "xlam, block of code": ("xlam", f"A\n```json\n[{CALL}]\n```\nB", "A\nB", [F]),
    "xlam, block without a name": ("xlam", f"```\n[{CALL}]\n```", "", [F]),
    "xlam, other code": ("xlam", "```python\nf[1]\n```\nB", None, []),
    "xlam, other list": ("xlam", '[{"name": "Ada"}]', None, []),
    "xlam, tag": ("xlam", f"<tool_call>[{CALL}]</tool_call>", "", [F]),
    "xlam, marker": ("xlam", f"[TOOL_CALLS][{CALL}]", "", [F]),
    "xlam, thought": ("xlam", f"<think>Hm [{CALL}].</think>[{CALL}]", f"<think>Hm [{CALL}].</think>", [F]),
    "llama4_json": ("llama4_json", f"<|python_start|>{CALL}; {OTHER}<|python_end|>", "", [F, G]),
    "llama4_json, no tags": ("llama4_json", f"A {CALL}{OTHER}", "A ", [F, G]),
    "llama4_json, tag alone": ("llama4_json", "A <|python_end|>", "A <|python_end|>", []),
    "mistral": ("mistral", 'A[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', "A", [F, G]),
    "mistral, no separator": ("mistral", '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g{}', "", [F, G]),
    "mistral, white space": ("mistral", '[TOOL_CALLS] f \n[ARGS] {"x": 1}', "", [F]),
    "mistral, text behind": ("mistral", 'A[TOOL_CALLS]f{"x": 1}B', "A", [F]),
    "mistral, list": ("mistral", f"A[TOOL_CALLS] [{CALL}, {OTHER}] B", "A", [F, G]),
    "mistral, name alone": ("mistral", "[TOOL_CALLS]f", None, []),
    "mistral, no name": ("mistral", "[TOOL_CALLS][ARGS]{}", None, []),
    "mistral, two names": ("mistral", "[TOOL_CALLS]f g{}", None, []),
    "mistral, separator cut off": ("mistral", "[TOOL_CALLS]f[AR", None, []),
    "mistral, arguments cut off": ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1', None, []),
    "mistral, arguments that are none": ("mistral", "[TOOL_CALLS]f[ARGS]{x}B", None, []),
    "mistral, a call and none": ("mistral", "[TOOL_CALLS]g{}[TOOL_CALLS]f B", "[TOOL_CALLS]f B", [G]),
    "mistral, long name": ("mistral", "[TOOL_CALLS]" + "f" * 300 + "{}", None, []),
    "mistral_list": ("mistral_list", f"[TOOL_CALLS][{CALL}]", "", [F]),
}
"""The dialect, a text, its content (``None``: all of it), and its calls."""


@pytest.mark.parametrize(("dialect", "text", "content", "calls"), CASES.values(), ids=CASES)
def test_answer(dialect: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    answer = read(text, dialect)
    assert answer.content == (text if content is None else content)
    assert [(call.name, call.arguments) for call in answer.calls] == calls


def test_mistral_has_ids() -> None:
    calls = read('[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', "mistral").calls
    assert [(call.name, call.id) for call in calls] == [("f", "a1B2c3D4e"), ("g", None)]


@pytest.mark.parametrize("key", [key for key, spec in SPECS.items() if spec.writer])
def test_examples_have_calls_with_json(key: str) -> None:
    answers = [check_chunking(lambda: make(key), text, rounds=4) for text in examples(key)]
    calls = [call for answer in answers for call in answer.calls]
    assert calls
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)
