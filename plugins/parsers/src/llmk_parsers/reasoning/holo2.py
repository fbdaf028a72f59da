"""Reasoning of Holo2: think tags, on unless the option ``thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>The button is on the left.</think>click(10, 20)",
    "The block is open.</think>Done.",
)
"""Answers as models write them, for the conformance kit."""


class Holo2(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("thinking", "enable_thinking")
