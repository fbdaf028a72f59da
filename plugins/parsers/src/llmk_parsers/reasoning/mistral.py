"""Reasoning of Magistral, Ministral and Mistral Small 4: ``[THINK]`` and ``[/THINK]``."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class Mistral(ThinkTags):
    """Special tokens, which the model writes itself, maybe after some content."""

    OPEN = ("[THINK]",)
    CLOSE = ("[/THINK]",)
    THINKS = False
    ANYWHERE = True
    CALLS = ()
    CALL_STARTS = ("[TOOL_CALLS]",)
    STRIP = True
