"""Reasoning of Seed-OSS: ``<seed:think>`` and ``</seed:think>``."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class SeedOss(ThinkTags):
    """Tags with a namespace; the budget that a request may set is reflected upon inside of a block."""

    OPEN = ("<seed:think>",)
    CLOSE = ("</seed:think>",)
    SWITCHES = ("enable_thinking", "thinking")
    CALLS = (("<seed:tool_call>", "</seed:tool_call>"),)
    CALL_STARTS = ("<seed:tool_call>\n<function=", "<seed:tool_call><function=")
