"""Reasoning of GLM-4.5 to GLM-4.7: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Glm45(ThinkTags):
    """Think tags of a hybrid model, whose calls are XML in ``<tool_call>``."""

    SWITCHES = ("enable_thinking",)
    STRIP = True
