"""Reasoning of Nemotron 3: think tags, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.content_needed import ContentNeeded

EXAMPLES = (
    "<think>Twelve plus thirty.</think>42",
    "I look.<tool_call>\n<function=find>\n</function>\n</tool_call>",
    "The block is open.</think>Paris.",
)
"""Answers as models write them, for the conformance kit."""


class NemotronV3(ContentNeeded):
    """Think tags of a hybrid model."""

    SWITCHES = ("enable_thinking",)
    STRIP = True
