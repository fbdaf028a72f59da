"""Reasoning of GigaChat 3.5: think tags, off unless the option ``reasoning`` is on."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class GigaChat35(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("reasoning",)
    THINKS = False
    CALLS = (("<｜GCML｜tool_calls>", "</｜GCML｜tool_calls>"),)
    CALL_STARTS = ("<｜GCML｜tool_calls>",)
