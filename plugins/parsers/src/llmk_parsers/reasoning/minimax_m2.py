"""Reasoning of MiniMax M2: think tags, of which the template writes the first."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags


class MiniMaxM2(ThinkTags):
    """Think tags of a model that always thinks."""

    CALLS = (("<minimax:tool_call>", "</minimax:tool_call>"),)
    CALL_STARTS = ("<minimax:tool_call>",)
    STRIP = True
