"""Reasoning of ERNIE 4.5 and X1: think tags and response tags."""

from __future__ import annotations

from llmk_parsers.answer_tags import AnswerTags


class Ernie45(AnswerTags):
    """Think tags of a model that always thinks."""

    ANSWER = ("<response>", "</response>")
    TRIM_ANSWER = False
