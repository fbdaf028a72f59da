"""Tool calls as a list of objects, bare, in a block of code, or between markers: xLAM."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import NOW, SAY, WEATHER
from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter


class XLam(CallRegions):
    """A bare list starts a line, or is behind a think block."""

    PAIRS: ClassVar = {"```": "```", "<tool_call>": "</tool_call>"}
    VERBATIM: ClassVar = {"<think>": "</think>"}
    INNER = ("json", "TOOL_CALLS]")
    LIST_STARTS_LINE = True
    WHITE_SPACE = "trimmed"

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls, strict=True)


WRITER = JsonWriter(before="[", separator=", ", after="]")

EXAMPLES = (
    f"[{WEATHER}, {SAY}]",
    f"I look.\n```json\n[{WEATHER}]\n```\nDone.",
    f"<tool_call>[{NOW}]</tool_call>",
    f"[TOOL_CALLS][{NOW}]",
    "As code: ```python\nprint([1])\n```",
)
