"""Reasoning of Granite 3.2 and 3.3: sentences that announce thoughts and response."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "Here is my thought process: twelve plus thirty. Here is my response: 42",
    "Here's my thought process:\na\nHere's my response:\nb",
    "Paris.",
)
"""Answers as models write them, for the conformance kit."""


class Granite(ThinkTags):
    """``Here is my thought process:`` and ``Here is my response:``, or with ``Here's``."""

    OPEN = ("Here is my thought process:", "Here's my thought process:")
    CLOSE = ("Here is my response:", "Here's my response:")
    THINKS = False
    CALLS = ()
    CALL_STARTS = ("<|tool_call|>",)
