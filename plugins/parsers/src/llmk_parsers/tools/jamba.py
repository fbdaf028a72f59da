"""Tool calls as a list of objects between ``<tool_calls>`` and ``</tool_calls>``: Jamba."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<tool_calls>"
_CLOSE = "</tool_calls>"


class Jamba(CallRegions):
    """A list, or lines of objects."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(
    trigger=_OPEN,
    markers=(_OPEN, _CLOSE),
    before=f"{_OPEN}[\n    ",
    separator=",\n    ",
    after=f"\n]{_CLOSE}",
)
