"""One tool call written as its name, and then its arguments as a JSON object: ``name[ARGS]{...}``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmk_parsers.call_reader import LONGEST_NAME, CallReader
from llmk_parsers.json_value import JsonValue

_NAME = re.compile(r"[^\s\[\]{}<>\"'(),:;|]*")
_ID = re.compile(r"[\w-]*")


class NamedObject(CallReader):
    """Reads such a call.

    Args:
        index: the call's number.
        before_arguments: what may stand before the arguments.
        before_id: what stands before the call's id, which may follow its name.
    """

    def __init__(self, index: int, before_arguments: Sequence[str] = (), before_id: str | None = None) -> None:
        super().__init__(index)
        self._texts = [*before_arguments, *([before_id] if before_id else [])]
        self._before_id = before_id
        self._word = ""
        self._arguments = JsonValue()
        self._step = self._in_name

    def _in_name(self, text: str, at: int) -> int:
        end = self._read_word(_NAME, text, at)
        if end < len(text) and not self.bad:
            self._called, self._word = self._word, ""
            self.bad = not self._called
            self._step = self._before_arguments
        return end

    def _in_id(self, text: str, at: int) -> int:
        end = self._read_word(_ID, text, at)
        if end < len(text) and not self.bad:
            self._id = self._word or None
            self._step = self._before_arguments
        return end

    def _before_arguments(self, text: str, at: int) -> int:
        if text[at].isspace():
            return at + 1
        if text[at] == "{":
            self._name = self._called
            self._step = self._in_arguments
            return at
        rest = text[at : at + 32]
        for mark in self._texts:
            if rest.startswith(mark):
                self._step = self._in_id if mark == self._before_id else self._before_arguments
                return at + len(mark)
            if mark.startswith(rest) and not self.final:
                self._waits = True
                return at
        self.bad = True
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._arguments.feed(text, at)
        self._pass_on(text[at:end])
        if self._arguments.complete:
            self._end()
            self.done = True
        self.bad = self._arguments.stopped
        return end

    def _read_word(self, wanted: re.Pattern[str], text: str, at: int) -> int:
        found = wanted.match(text, at, at + LONGEST_NAME + 1)
        end = found.end() if found else at
        self._word += text[at:end]
        self.bad = len(self._word) > LONGEST_NAME
        return end
