"""Reasoning of MiMo: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class MiMo(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("enable_thinking",)
