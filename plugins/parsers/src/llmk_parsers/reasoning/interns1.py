"""Reasoning of Intern-S1 and InternLM: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class InternS1(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("enable_thinking",)
    CALLS = ()
    CALL_STARTS = ("<|action_start|>",)
