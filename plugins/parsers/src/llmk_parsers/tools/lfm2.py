"""Tool calls as a list of Python calls between ``<|tool_call_start|>`` and ``<|tool_call_end|>``: LFM2."""

from __future__ import annotations

from typing import ClassVar

from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import TrimmedText
from llmk_parsers.machine import markers
from llmk_parsers.python_calls import PythonCalls
from llmk_parsers.python_writer import PythonWriter

_OPEN = "<|tool_call_start|>"
_CLOSE = "<|tool_call_end|>"
_BEHIND_ECHO = markers(_OPEN, _CLOSE)


class Lfm2(TrimmedText, PythonCalls):
    """Calls may also be JSON, and quotes inside of arguments unescaped.

    The model sometimes writes a list once more behind the closing marker, and then another closing marker: both are
    dropped.
    """

    PAIRS: ClassVar = {_OPEN: _CLOSE}
    LOOSE_QUOTES = True

    def _starts_call(self, mark: str) -> bool:
        return mark == "{" or super()._starts_call(mark)

    def _reader(self, mark: str) -> CallReader:
        return CallObject(self._calls) if mark == "{" else super()._reader(mark)

    def _content(self) -> bool:
        was_open = bool(self._closing)
        more = super()._content()
        if was_open and not self._closing and self._state == self._content:
            self._state = self._behind_list
        return more

    def _behind_list(self) -> bool:
        if self._at == len(self._text) and not self._ended:
            return False
        self._state = self._echo if self._text.startswith("[", self._at) else self._content
        return True

    def _echo(self) -> bool:
        text, marker = self._read_until(_BEHIND_ECHO)
        self._opening.append(text)
        if marker == _CLOSE:
            self._opening.clear()
        elif marker or self._ended:
            self._give_up()
            self._at -= len(marker)
        self._state = self._content if marker or self._ended else self._echo
        return bool(marker)


WRITER = PythonWriter(trigger=_OPEN, markers=(_OPEN, _CLOSE), before=f"{_OPEN}[", after=f"]{_CLOSE}")
