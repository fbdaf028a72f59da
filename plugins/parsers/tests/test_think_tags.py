from __future__ import annotations

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.reasoning.qwen3 import Qwen3

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<think>"}}\n</tool_call>'


def test_blocks_may_interleave_in_one_chunk() -> None:
    events = Qwen3(ParserContext()).push(f"<think>a</think>b{CALL}<think>c</think>d")
    kinds = [type(event) for event in events]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kind is not kinds[i - 1]] == [
        ReasoningDelta,
        TextDelta,
        ReasoningDelta,
        TextDelta,
    ]
