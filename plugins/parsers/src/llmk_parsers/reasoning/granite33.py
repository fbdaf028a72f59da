"""Reasoning of Granite 3.3: think tags and response tags, with the option ``thinking``."""

from __future__ import annotations

from llmk_parsers.answer_tags import AnswerTags


class Granite33(AnswerTags):
    """The model writes the tags itself; what has none is content."""

    THINKS = False
    STRIP = True
    ANSWER = ("<response>", "</response>")
    CALLS = ()
    CALL_STARTS = ("<|tool_call|>",)
