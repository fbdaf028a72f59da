"""Reasoning of the Qwen3 family: think tags and a switch, ``enable_thinking``, that is on by default."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags


class Qwen3(ThinkTags):
    """Think tags whose switch the request may turn."""

    def _switch(self, context: ParserContext) -> bool:
        if context.thinking is not None:
            return context.thinking
        return bool(context.template_options.get("enable_thinking", True))
