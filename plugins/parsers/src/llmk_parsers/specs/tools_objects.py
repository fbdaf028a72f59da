"""Tool calls as JSON objects between tags of a model's own."""

from __future__ import annotations

from llmk.api import ParserQuery, Verdict
from llmk_parsers.claims import lacks, mentions
from llmk_parsers.spec_of import writing


def _longcat(query: ParserQuery) -> Verdict:
    return mentions(query, "<longcat_tool_call>")


def _dots(query: ParserQuery) -> Verdict:
    return mentions(query, "<dots_function_call>")


def _ernie45(query: ParserQuery) -> Verdict:
    return mentions(query, "<tool_call>", "<response>") & lacks(query, "<invoke", "<function=", "<arg_key")


TOOL_PARSERS = [
    writing("longcat", "LongCat", _longcat, "JSON between <longcat_tool_call> tags", special_tokens=True),
    writing("dots", "Dots", _dots, "JSON between <dots_function_call> tags"),
    # Hermes has the same tags.
    writing("ernie45", "Ernie45", _ernie45, "JSON between <tool_call> tags, text in <response> tags", score=1),
]
