"""Reasoning of Kimi K2 Thinking and K2.5: think tags, on unless the option ``thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class KimiK2(ThinkTags):
    """Think tags; a section of calls ends a block that the model forgot to close."""

    SWITCHES = ("thinking", "enable_thinking")
    CALLS = (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),)
    CALL_STARTS = ("<|tool_calls_section_begin|>",)
    STRIP = True
