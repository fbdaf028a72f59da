"""Reasoning of Holo2: think tags, on unless the option ``thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Holo2(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("thinking", "enable_thinking")
