"""Reasoning of K2 Horizon: tags for three depths of thinking."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<ifm|think>Twelve plus thirty.</ifm|think>\n42",
    "The template has opened the block.</ifm|think_fast>Paris.",
    "<ifm|think_faster>No <ifm|tool_call> yet.</ifm|think_faster><ifm|tool_calls><ifm|tool_call>find"
    "<ifm|arg_key>q</ifm|arg_key><ifm|arg_value>x</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
)
"""Answers as models write them, for the conformance kit."""


class K2Horizon(ThinkTags):
    """Special tokens, of which the template writes the first. A list of calls ends a block."""

    OPEN = ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>")
    CLOSE = ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>")
    ANYWHERE = True
    CALLS = (("<ifm|tool_calls>", "</ifm|tool_calls>"),)
    CALL_STARTS = ("<ifm|tool_calls>",)
