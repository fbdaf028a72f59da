"""Tool calls as a list of objects in a message to ``tool/function_call``: HyperCLOVA X SEED Think."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = " -> tool/function_call"


class HyperClovaX(CallRegions):
    """The list ends the calls."""

    PAIRS: ClassVar = {_OPEN: ""}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN,), before=f"{_OPEN}\n[", separator=", ", after="]")
