"""Tool calls as lines of objects between ``<tool_calls>`` and ``</tool_calls>``: MiniMax-M1."""

from __future__ import annotations

from llmk_parsers.call_examples import NOW, SAY, WEATHER
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

EXAMPLES = (
    f"<tool_calls>\n{WEATHER}\n{SAY}\n</tool_calls>",
    f"I look.\n<tool_calls>\n{NOW}\n</tool_calls>\nDone.",
)
