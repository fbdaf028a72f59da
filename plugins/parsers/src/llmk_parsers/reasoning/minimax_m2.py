"""Reasoning of MiniMax M2: think tags, of which the template writes the first."""

from __future__ import annotations

from llmk_parsers.think_tags import ThinkTags

EXAMPLES = (
    "Twelve plus thirty.</think>\n\n42",
    'I look.<minimax:tool_call>\n<invoke name="find">\n</invoke>\n</minimax:tool_call>',
    "<think>a</think>b",
)
"""Answers as models write them, for the conformance kit."""


class MiniMaxM2(ThinkTags):
    """Think tags of a model that always thinks."""

    CALLS = (("<minimax:tool_call>", "</minimax:tool_call>"),)
    CALL_STARTS = ("<minimax:tool_call>",)
    STRIP = True
