"""Tool calls as a list of objects, bare, in a block of code, or between markers: xLAM."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import TrimmedText
from llmk_parsers.json_writer import JsonWriter


class XLam(TrimmedText):
    """A bare list starts a line, or is behind a think block."""

    PAIRS: ClassVar = {"```": "```", "<tool_call>": "</tool_call>"}
    VERBATIM: ClassVar = {"<think>": "</think>"}
    INNER = ("json", "TOOL_CALLS]")
    LIST_STARTS_LINE = True

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls, strict=True)


WRITER = JsonWriter(before="[", separator=", ", after="]")
