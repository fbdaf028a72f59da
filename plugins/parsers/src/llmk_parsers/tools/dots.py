"""Tool calls as objects between ``<dots_function_call>`` and ``</dots_function_call>``: dots.llm."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<dots_function_call>"
_CLOSE = "</dots_function_call>"


class Dots(CallRegions):
    """As Hermes, with other tags."""

    STRIP = True
    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), opening=f'{_OPEN}\n{{"name": ', closing=f"}}\n{_CLOSE}")
