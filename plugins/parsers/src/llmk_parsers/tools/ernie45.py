"""Tool calls as Hermes writes them, and text between ``<response>`` tags: ERNIE 4.5."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.tools import hermes

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class Ernie45(CallRegions):
    """The tags around text are dropped."""

    STRIP = True
    PAIRS: ClassVar = {_OPEN: _CLOSE}
    DROPPED = ("<response>", "</response>")


WRITER = hermes.WRITER
