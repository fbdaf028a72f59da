"""Tool calls as bare JSON objects, ``{"name": ..., "parameters": {...}}``, separated by ``;``: Llama 3.1 to 3.3."""

from __future__ import annotations

import re

from llmk.api import ParserContext
from llmk_parsers.json_value import Brackets
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.machine import markers
from llmk_parsers.tool_machine import ToolMachine

_TAG = "<|python_tag|>"
_CALL_STARTS = markers(_TAG, "{")
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s;,]*")


class Llama3Json(ToolMachine):
    """Any object in the text may be a call; one that is not is text, including all nested objects."""

    STRICT = True

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._state = self._content
        self._other = Brackets()

    def _content(self) -> bool:
        text, marker = self._read_until(_CALL_STARTS)
        self._say(text)
        if marker == _TAG:
            self._opening.append(marker)
            self._state = self._after_tag
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
        if called is None:
            return False
        if called:
            self._state = self._after_call
        else:
            self._other = Brackets()
            self._other.feed(self._object.raw, 0)
            self._state = self._in_other_object
        return True

    def _in_other_object(self) -> bool:
        start = self._at
        self._at = self._other.feed(self._text, start)
        self._say(self._text[start : self._at])
        if self._other.complete or self._other.stopped:
            self._state = self._content
            return True
        return False


WRITER = JsonWriter(middle=', "parameters": ', separator="; ")
