"""Reasoning of Kimi K3: XTML, with the elements ``think``, ``response`` and ``tools``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.sections import Kind, Sections

THINK, THINK_END = "<|open|>think<|sep|>", "<|close|>think<|sep|>"
TOOLS, TOOLS_END = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"


class KimiK3(Sections):
    """Thoughts, answers and calls, of which the first starts in the prompt. It thinks unless the request says no."""

    SECTIONS: ClassVar[Mapping[str, Kind]] = {
        THINK: "reasoning",
        THINK_END: "content",
        "<|open|>response<|sep|>": "content",
        "<|close|>response<|sep|>": "content",
        TOOLS: "call",
        TOOLS_END: "content",
        "<|close|>message<|sep|>": "content",
        "<|end_of_msg|>": "content",
    }

    def _first(self, context: ParserContext) -> Kind:
        options = context.template_options
        thinks = (
            options.get("thinking", options.get("enable_thinking", True))
            if context.thinking is None
            else context.thinking
        )
        return "reasoning" if thinks else "content"
