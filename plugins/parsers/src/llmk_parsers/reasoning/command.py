"""Reasoning of Cohere's Command A Reasoning, Command R7B and Command A+ (cohere2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from llmk_parsers.sections import Kind, Sections


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
