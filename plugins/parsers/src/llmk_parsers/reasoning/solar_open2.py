"""Reasoning of Solar Open 2: ``<|think:start|>`` and ``<|think:end|>``."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags


class SolarOpen2(ThinkTags):
    """Tags that the template writes. Whether it leaves the block open depends on ``reasoning_effort``."""

    OPEN = ("<|think:start|>",)
    CLOSE = ("<|think:end|>",)
    ANYWHERE = True
    CALLS = (("<|tool_call:start|>", "<|tool_call:end|>"),)
    CALL_STARTS = ("<|tool_call:start|>",)

    def _switch(self, context: ParserContext) -> bool:
        return context.template_options.get("reasoning_effort") in (None, "medium", "high", "xhigh")
