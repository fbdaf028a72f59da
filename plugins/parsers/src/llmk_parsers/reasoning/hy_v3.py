"""Reasoning of Hunyuan 3: think tags, off unless ``reasoning_effort`` is set."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "<think>Twelve plus thirty.</think>42",
    "<think:opensource>a</think:opensource>b",
    "Paris.",
)
"""Answers as models write them, for the conformance kit."""


class HunyuanV3(ThinkTags):
    """Think tags, maybe with the suffix of the open release, which the template opens according to the effort."""

    OPEN = ("<think>", "<think:opensource>")
    CLOSE = ("</think>", "</think:opensource>")
    CALLS = (("<tool_calls>", "</tool_calls>"), ("<tool_calls:opensource>", "</tool_calls:opensource>"))
    CALL_STARTS = ("<tool_calls>\n<tool_call>", "<tool_calls><tool_call>", "<tool_calls:opensource>")

    def _switch(self, context: ParserContext) -> bool:
        return context.template_options.get("reasoning_effort", "no_think") not in (None, "none", "no_think")
