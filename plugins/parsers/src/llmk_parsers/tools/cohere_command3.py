"""Tool calls of Cohere's Command R7B and Command A: a list of objects with ``tool_name`` and ``parameters``.

Their ids count the calls of a conversation from 0, so they are not passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereCommand(CallRegions):
    """Text may stand between markers too."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}
    DROPPED: ClassVar[Sequence[str]] = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls, names=("tool_name", "name"))


WRITER = JsonWriter(
    trigger=_OPEN,
    markers=(_OPEN, _CLOSE),
    before=f"{_OPEN}[\n    ",
    opening='{"tool_name": ',
    middle=', "parameters": ',
    separator=",\n    ",
    after=f"\n]{_CLOSE}",
)
