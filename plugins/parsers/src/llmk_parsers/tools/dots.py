"""Tool calls as objects between ``<dots_function_call>`` and ``</dots_function_call>``: dots.llm."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_examples import NOW, SAY, WEATHER
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN = "<dots_function_call>"
_CLOSE = "</dots_function_call>"


class Dots(CallRegions):
    """As Hermes, with other tags."""

    STRIP = True
    PAIRS: ClassVar = {_OPEN: _CLOSE}


WRITER = JsonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), opening=f'{_OPEN}\n{{"name": ', closing=f"}}\n{_CLOSE}")

EXAMPLES = (
    f"I look.\n{_OPEN}\n{WEATHER}\n{_CLOSE}",
    f"{_OPEN}{SAY}{_CLOSE}\n{_OPEN}{NOW}{_CLOSE}\nDone.",
    f"{_OPEN} is a tag.",
)
