"""Tool calls as a list of objects between ``<tool_calls>`` and ``</tool_calls>``: Jamba."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import NOW, SAY, WEATHER
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

EXAMPLES = (
    f"I look.\n<tool_calls>[{WEATHER}]</tool_calls>",
    f"<tool_calls>[{WEATHER}, {SAY}]</tool_calls>\nDone.",
    f"<tool_calls>[\n  {NOW},\n  {SAY}\n]</tool_calls>",
)
