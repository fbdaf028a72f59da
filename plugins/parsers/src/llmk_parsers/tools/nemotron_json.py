"""Tool calls as a list of objects between ``<TOOLCALL>`` and ``</TOOLCALL>``: Nemotron."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<TOOLCALL>"
_CLOSE = "</TOOLCALL>"


class NemotronJson(CallRegions):
    """A list, or one object."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), before=f"{_OPEN}[", separator=", ", after=f"]{_CLOSE}")
