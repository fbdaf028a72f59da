"""Reasoning of K2 Horizon: tags for three depths of thinking."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class K2Horizon(ThinkTags):
    """Special tokens, of which the template writes the first. A list of calls ends a block."""

    OPEN = ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>")
    CLOSE = ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>")
    ANYWHERE = True
    CALLS = (("<ifm|tool_calls>", "</ifm|tool_calls>"),)
    CALL_STARTS = ("<ifm|tool_calls>",)
