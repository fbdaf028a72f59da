"""Reasoning of MiMo: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>42",
    "I look.<tool_call><function=find><parameter=q>x</parameter></function></tool_call>",
)
"""Answers as models write them, for the conformance kit."""


class MiMo(ThinkTags):
    """Think tags of a hybrid model."""

    SWITCHES = ("enable_thinking",)
