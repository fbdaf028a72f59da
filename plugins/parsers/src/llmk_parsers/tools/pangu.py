"""Tool calls as a list of objects between ``[unused11]`` and ``[unused12]``: openPangu."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "[unused11]"
_CLOSE = "[unused12]"


class Pangu(CallRegions):
    """A list, or one object."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), before=f"{_OPEN}[", separator=", ", after=f"]{_CLOSE}")
