"""Reasoning of Cohere's Command A Reasoning, Command R7B and Command A+ (cohere2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from llmk_parsers.sections import Kind, Sections

EXAMPLES = (
    "<|START_THINKING|>Twelve plus thirty.<|END_THINKING|><|START_RESPONSE|>42<|END_RESPONSE|>",
    '<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "find", '
    '"parameters": {"q": "x"}}\n]<|END_ACTION|>',
    "<|START_TEXT|>Paris.<|END_TEXT|>",
)
"""Answers as models write them, for the conformance kit."""


class Command(Sections):
    """Sections for thoughts, actions (tool calls) and the response, which may have text sections."""

    SECTIONS: ClassVar[Mapping[str, Kind]] = {
        "<|START_THINKING|>": "reasoning",
        "<|END_THINKING|>": "content",
        "<|START_ACTION|>": "call",
        "<|END_ACTION|>": "content",
        "<|START_RESPONSE|>": "content",
        "<|END_RESPONSE|>": "content",
        "<|START_TEXT|>": "content",
        "<|END_TEXT|>": "content",
    }
