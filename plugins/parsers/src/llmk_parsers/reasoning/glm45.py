"""Reasoning of GLM-4.5 to GLM-4.7: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>\n42",
    "The block is open.</think>Paris.",
    "<think>I look.</think><tool_call>find\n<arg_key>q</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
)
"""Answers as models write them, for the conformance kit."""


class Glm45(ThinkTags):
    """Think tags of a hybrid model, whose calls are XML in ``<tool_call>``."""

    SWITCHES = ("enable_thinking",)
    STRIP = True
