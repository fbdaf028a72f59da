"""Tool calls as JSON objects between ``<tool_call>`` and ``</tool_call>``: Hermes, Qwen2.5, Qwen3, QwQ and others."""

from __future__ import annotations

import re

from llmk.api import ParserContext
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.machine import markers
from llmk_parsers.tool_machine import ToolMachine

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_OUTSIDE = markers(_OPEN)
_BEHIND_CALL = markers(_OPEN, _CLOSE)
_BEFORE_FIRST = re.compile(r"[\s\[]*")
_BETWEEN = re.compile(r"[\s,\]}]*")


class Hermes(ToolMachine):
    """Any number of objects per pair of tags, in a list or not.

    Anything between tags that is not a call is text, including the tags. After a call, stray closing brackets are
    skipped, anything else is text, and the closing tag may be missing.
    """

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._close_owed = False
        self._state = self._content

    def _content(self) -> bool:
        text, marker = self._read_until(_BEHIND_CALL if self._close_owed else _OUTSIDE)
        tag_cut_off = self._ended and self._close_owed and not self._said and _CLOSE.startswith(text)
        self._say("" if tag_cut_off else text)
        if marker == _CLOSE:
            self._close_owed = False
        elif marker:
            self._opening.append(marker)
            self._close_owed = False
            self._state = self._body
        return bool(marker)

    def _body(self) -> bool:
        """State between objects. After a call, a closing tag is expected."""
        found = (_BETWEEN if self._close_owed else _BEFORE_FIRST).match(self._text, self._at)
        skipped = found.group() if found else ""
        self._at += len(skipped)
        if not self._close_owed:
            self._opening.append(skipped)
        if self._text.startswith("{", self._at):
            self._start_object()
            self._state = self._in_object
            return True
        if self._at == len(self._text) and not self._ended:
            return False
        self._give_up()
        self._state = self._content
        return True

    def _in_object(self) -> bool:
        called = self._read_object()
        if called is None:
            return False
        self._close_owed = self._close_owed or called
        self._state = self._body if called else self._content
        return True


WRITER = JsonWriter(
    trigger=_OPEN,
    markers=(_OPEN, _CLOSE),
    opening=f'{_OPEN}\n{{"name": ',
    closing=f"}}\n{_CLOSE}",
)
