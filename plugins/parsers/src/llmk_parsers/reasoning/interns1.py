"""Reasoning of Intern-S1 and InternLM: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>42",
    "The block is open.</think>Paris.",
)
"""Answers as models write them, for the conformance kit."""


class InternS1(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("enable_thinking",)
    CALLS = ()
    CALL_STARTS = ("<|action_start|>",)
