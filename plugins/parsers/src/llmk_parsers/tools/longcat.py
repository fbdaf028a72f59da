"""Tool calls as objects between ``<longcat_tool_call>`` and ``</longcat_tool_call>``: LongCat."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<longcat_tool_call>"
_CLOSE = "</longcat_tool_call>"


class LongCat(CallRegions):
    """As Hermes, with other tags."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), opening=f'{_OPEN}\n{{"name": ', closing=f"}}\n{_CLOSE}")
