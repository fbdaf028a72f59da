"""The plugin module of ``llmk-parsers``: its parsers, and the checkpoints that they claim."""

from __future__ import annotations

from llmk.api import ParserSpec, hookimpl
from llmk_parsers import claims


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Reasoning parsers."""
    return [
        ParserSpec(
            id="parsers.qwen3",
            name="qwen3",
            implementation="llmk_parsers.qwen3:Qwen3",
            claims=claims.qwen3,
            examples="llmk_parsers.examples:QWEN3",
            summary="think tags, with the option enable_thinking",
        ),
        ParserSpec(
            id="parsers.deepseek_r1",
            name="deepseek_r1",
            implementation="llmk_parsers.deepseek_r1:DeepSeekR1",
            claims=claims.deepseek_r1,
            examples="llmk_parsers.examples:DEEPSEEK_R1",
            summary="think tags of models that always think",
        ),
    ]


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return [
        ParserSpec(
            id="parsers.hermes",
            name="hermes",
            implementation="llmk_parsers.hermes:Hermes",
            writer="llmk_parsers.hermes:WRITER",
            claims=claims.hermes,
            examples="llmk_parsers.examples:HERMES",
            summary="JSON objects between <tool_call> tags",
        ),
        ParserSpec(
            id="parsers.llama3_json",
            name="llama3_json",
            implementation="llmk_parsers.llama3_json:Llama3Json",
            writer="llmk_parsers.llama3_json:WRITER",
            claims=claims.llama3_json,
            examples="llmk_parsers.examples:LLAMA3_JSON",
            summary="bare JSON objects with a name and parameters",
        ),
    ]
