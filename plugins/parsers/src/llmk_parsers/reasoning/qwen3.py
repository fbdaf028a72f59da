"""Reasoning of the Qwen3 family: think tags, and the option ``enable_thinking``, which is on by default."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>\nTwelve plus thirty is forty-two.\n</think>\n\n42",
    "<think>No tool is needed, says <tool_call>.</think>Paris, where 3 < 4.",
    '<think>\nI should look.\n<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>',
    "<think>a</think>b<think>c</think>d",
)
"""Answers as models write them, for the conformance kit."""


class Qwen3(ThinkTags):
    """Think tags with an option that the request may set."""

    SWITCHES = ("enable_thinking",)
