"""Tool calls as a list of objects behind ``<|tool_call|>`` or ``<tool_call>``: Granite 3."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<|tool_call|>"


class Granite(CallRegions):
    """The list ends the calls; there is no closing marker."""

    PAIRS: ClassVar = {_OPEN: "", "<tool_call>": ""}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN,), before=f"{_OPEN} [", separator=", ", after="]")
