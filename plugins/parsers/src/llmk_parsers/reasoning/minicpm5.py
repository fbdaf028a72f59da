"""Reasoning of MiniCPM 5: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>42",
    'I look.</think><function name="find"><param name="q">x</param></function>',
)
"""Answers as models write them, for the conformance kit."""


class MiniCpm5(ThinkTags):
    """Think tags of a hybrid model, whose calls are ``<function name=…>``."""

    SWITCHES = ("enable_thinking",)
    CALLS = ()
    CALL_STARTS = ('<function name="',)
