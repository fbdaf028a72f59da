"""Reasoning of DeepSeek-R1 and its distillations: think tags without a switch."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags


class DeepSeekR1(ThinkTags):
    """Think tags of a model that always thinks, unless its template closed the block already, or a grammar starts with
    the answer."""

    def _switch(self, context: ParserContext) -> bool:
        return context.thinking is not False
