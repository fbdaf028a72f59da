"""Tool calls as ``<function=name>{...}</function>``: Functionary 3.1, and the custom calls of Llama 3.1."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.named_object import NamedObject

_OPEN = "<function="
_CLOSE = "</function>"


class Functionary(CallRegions):
    """One object per pair of tags, with the name in the first one."""

    PAIRS: ClassVar = {_OPEN: _CLOSE}

    def _starts_call(self, mark: str) -> bool:
        return mark.isalnum() or mark in "_-"

    def _reader(self, mark: str) -> CallReader:
        return NamedObject(self._calls, [">"])


WRITER = JsonWriter(
    trigger=_OPEN, markers=(_OPEN, _CLOSE), opening=_OPEN, middle=">", closing=_CLOSE, separator="", quote=str
)
