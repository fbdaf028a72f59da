"""Reasoning of the Qwen3 family: think tags, and the option ``enable_thinking``, which is on by default."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Qwen3(ThinkTags):
    """Think tags with an option that the request may set."""

    SWITCHES = ("enable_thinking",)
