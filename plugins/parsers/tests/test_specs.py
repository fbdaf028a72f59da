from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmk.api import Checkpoint, ParserQuery, ParserSpec
from llmk_parsers import specs

SPECS = [*specs.llmk_reasoning_parsers(), *specs.llmk_tool_parsers()]

QWEN_TOOLS = (
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call>:\\n"
    '<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>'
)
TEMPLATES = {
    "Qwen2.5": (QWEN_TOOLS, set()),
    "Qwen3": (
        QWEN_TOOLS + "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>' }}",
        {"qwen3"},
    ),
    "QwQ": (QWEN_TOOLS + "{{- '<|im_start|>assistant\\n<think>\\n' }}", {"deepseek_r1"}),
    "DeepSeek-R1": ("{{'<｜Assistant｜><think>\\n'}} {{'<｜tool▁calls▁begin｜>'}}", {"deepseek_r1"}),
    "Qwen3-Coder": ("<tool_call>\\n<function=example_function_name>\\n<parameter=name> arguments", set()),
    "GLM-4.5": ("<tool_call>{name}\\n<arg_key>{arguments}</arg_key> <think> enable_thinking", {"qwen3"}),
    "Llama-3.1": ('<|start_header_id|>ipython {{ \'{"name": function name, "parameters": dictionary\' }}', set()),
    "plain": ("{{ messages[0].content }}", set()),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_dialect_is_detected_from_the_template(family: str) -> None:
    template, reasoning = TEMPLATES[family]
    query = ParserQuery(checkpoint=Checkpoint(path=Path(), config={}, chat_template=template))
    assert {spec.name for spec in specs.llmk_reasoning_parsers() if spec.claims(query)} == reasoning
    tools = {"hermes"} if QWEN_TOOLS in template else {"llama3_json"} if family == "Llama-3.1" else set()
    assert {spec.name for spec in specs.llmk_tool_parsers() if spec.claims(query)} == tools


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_no_template_is_a_reason(spec: ParserSpec) -> None:
    verdict = spec.claims(ParserQuery(checkpoint=Checkpoint(path=Path(), config={})))
    assert not verdict
    assert verdict.reasons[0].found == "no chat template"


def test_specs_are_cheap_to_list() -> None:
    heavy = ("torch", "pydantic", "llmk_parsers.tools.hermes")
    code = f"import sys, llmk_parsers.specs; print([name for name in {heavy} if name in sys.modules])"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert listed.stdout.strip() == "[]"
