"""Reasoning of Granite 3.2 and 3.3: sentences that announce thoughts and response."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Granite(ThinkTags):
    """``Here is my thought process:`` and ``Here is my response:``, or with ``Here's``."""

    OPEN = ("Here is my thought process:", "Here's my thought process:")
    CLOSE = ("Here is my response:", "Here's my response:")
    THINKS = False
    CALLS = ()
    CALL_STARTS = ("<|tool_call|>",)
