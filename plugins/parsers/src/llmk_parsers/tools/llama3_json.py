"""Tool calls as bare JSON objects, ``{"name": ..., "parameters": {...}}``, separated by ``;``: Llama 3.1 to 3.3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.machine import markers
from llmk_parsers.tool_machine import ToolMachine

_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s;,]*")


class Llama3Json(ToolMachine):
    """Any object in the text may be a call; one that is not is text, including all nested objects."""

    TAG: ClassVar[str] = "<|python_tag|>"
    """May come before calls."""
    END_TAGS: ClassVar[Sequence[str]] = ()
    """May come behind them."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._state = self._content

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls, strict=True)

    def _content(self) -> bool:
        text, marker = self._read_until(markers("{", self.TAG, *self.END_TAGS))
        self._say(text)
        if marker in self.END_TAGS and self._calls:
            return True
        if marker == self.TAG:
            self._opening.append(marker)
            self._state = self._after_tag
        elif marker in self.END_TAGS:
            self._say(marker)
        elif marker:
            self._at -= len(marker)
            self._start_object()
            self._state = self._in_object
        return bool(marker)

    def _after_tag(self) -> bool:
        return self._between(_SPACE)

    def _after_call(self) -> bool:
        return self._between(_BETWEEN)

    def _between(self, skip: re.Pattern[str]) -> bool:
        found = skip.match(self._text, self._at)
        skipped = found.group() if found else ""
        self._at += len(skipped)
        self._opening.append(skipped)
        if self._at == len(self._text) and not self._ended:
            return False
        if self._text.startswith("{", self._at):
            self._start_object()
            self._state = self._in_object
        else:
            self._give_up()
            self._state = self._content
        return True

    def _in_object(self) -> bool:
        called = self._read_object()
        if called:
            self._state = self._after_call
        elif called is False:
            self._start_other()
            self._state = self._in_other
        return called is not None

    def _in_other(self) -> bool:
        if self._skip_other() is None:
            return False
        self._state = self._content
        return True


WRITER = JsonWriter(middle=', "parameters": ', separator="; ")
