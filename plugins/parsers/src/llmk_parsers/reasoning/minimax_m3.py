"""Reasoning of MiniMax M3: ``<mm:think>`` where the model wants to, or always with ``thinking_mode="enabled"``."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.think_tags import ThinkTags


class MiniMaxM3(ThinkTags):
    """Tags with a namespace. In the adaptive mode the model opens a block if it wants to."""

    OPEN = ("<mm:think>",)
    CLOSE = ("</mm:think>",)
    ANYWHERE = True
    CALLS = (("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"),)
    CALL_STARTS = ("]<]minimax[>[<tool_call>",)

    def _switch(self, context: ParserContext) -> bool:
        return context.template_options.get("thinking_mode") == "enabled"
