"""Tool calls as lines of objects between ``<tool_calls>`` and ``</tool_calls>``: MiniMax-M1."""

from __future__ import annotations

from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tools.jamba import Jamba


class MiniMaxM1(Jamba):
    """As Jamba, which also writes lines."""


WRITER = JsonWriter(
    trigger="<tool_calls>",
    markers=("<tool_calls>", "</tool_calls>"),
    before="<tool_calls>\n",
    after="\n</tool_calls>",
)
