"""Reasoning of Granite 3.3: think tags and response tags, with the option ``thinking``."""

from __future__ import annotations

from llmk_parsers.answer_tags import AnswerTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think><response>42</response>",
    "<think>\nTwelve plus thirty.\n</think>\n<response>\n42\n</response>",
    "Paris.",
)
"""Answers as models write them, for the conformance kit."""


class Granite33(AnswerTags):
    """The model writes the tags itself; what has none is content."""

    THINKS = False
    STRIP = True
    ANSWER = ("<response>", "</response>")
    CALLS = ()
    CALL_STARTS = ("<|tool_call|>",)
