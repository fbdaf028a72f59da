"""Tool calls as objects, each behind ``<function_call>``: granite-20b-functioncalling."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<function_call>"


class Granite20bFc(CallRegions):
    """The object ends the call; there is no closing marker."""

    PAIRS: ClassVar = {_OPEN: ""}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN,), opening=f'{_OPEN} {{"name": ', separator=" ")
