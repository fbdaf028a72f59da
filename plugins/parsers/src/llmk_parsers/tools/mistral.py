"""Tool calls behind ``[TOOL_CALLS]``: Mistral.

Since version 11 of its tokenizer, a call is ``[TOOL_CALLS]name[ARGS]{...}``, for a time with ``[CALL_ID]`` and an id
before ``[ARGS]``; before, all are a list of objects (https://docs.mistral.ai, mistral-common's tokenizers).
"""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.named_object import NamedObject

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral(CallRegions):
    """Either form. Calls end the message, so text behind them, which the model makes up, is dropped."""

    PAIRS: ClassVar = {_CALLS: ""}

    STRIP = True

    def _starts_call(self, mark: str) -> bool:
        return mark == "{" or (not self._in_list and (mark.isalnum() or mark in "_-"))

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls) if mark == "{" else NamedObject(self._calls, [_ARGS], _ID)

    def _say(self, text: str) -> None:
        if not self._called:
            super()._say(text)


WRITER = JsonWriter(
    trigger=_CALLS, markers=(_CALLS, _ARGS), opening=_CALLS, middle=_ARGS, closing="", separator="", quote=str
)
