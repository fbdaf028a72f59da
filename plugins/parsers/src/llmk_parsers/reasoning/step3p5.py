"""Reasoning of Step 3.5: think tags with line breaks of their own."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>\nTwelve plus thirty.\n</think>\n42",
    "I look.\n<tool_call>\n<function=read_file>\n<parameter=path>/tmp/a</parameter>\n</function>\n</tool_call>",
    "a\n\n</think>b",
)
"""Answers as models write them, for the conformance kit."""


class Step3p5(ThinkTags):
    """Think tags of a model that always thinks; the line break before the closing tag belongs to it."""

    STRIP = True
