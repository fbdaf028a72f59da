"""Reasoning of MiniCPM 5: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class MiniCpm5(ThinkTags):
    """Think tags of a hybrid model, whose calls are ``<function name=…>``."""

    SWITCHES = ("enable_thinking",)
    CALLS = ()
    CALL_STARTS = ('<function name="',)
