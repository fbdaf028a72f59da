"""Tool calls as a list of objects between ``[unused11]`` and ``[unused12]``: openPangu."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import NOW, SAY, WEATHER
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "[unused11]"
_CLOSE = "[unused12]"


class Pangu(CallRegions):
    """A list, or one object."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), before=f"{_OPEN}[", separator=", ", after=f"]{_CLOSE}")

EXAMPLES = (
    f"I look.\n[unused11][{WEATHER}][unused12]",
    f"[unused11][{WEATHER}, {SAY}][unused12]\nDone.",
    f"[unused11][\n  {NOW},\n  {SAY}\n][unused12]",
)
