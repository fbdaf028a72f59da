"""The dialect of tables, as an incremental state machine.

A call is a table like those of TOML, whose values are JSON::

    [[call.weather]]
    city = "Oslo"
    days = [1, 2]
    [[end]]

A line has a key, bare (letters, digits, ``_`` and ``-``) or a JSON string, and its value, which may go on over further
lines. Spaces around the equals sign and at the ends of lines, and lines that are empty, don't count. A call is all from
``[[call.`` to ``[[end]]``; what stands before and behind is content, to the space. What is no table after all, or names
a key twice, is content too: that is known at the first character that can't be, and the line of that character is read
anew, since another call may start in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from llmk.api import Event, ParserContext, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk_estuary.heron_json import JsonReader, State

OPEN, CLOSE = "[[call.", "[[end]]"
BARE_KEY = re.compile(r"[A-Za-z0-9_\-]+")

_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_SPACE = re.compile(r"[ \t\r]*")
_LINES = re.compile(r"[ \t\r\n]*")


class TableParser:
    """Follows ``llmk.api.ToolParser``. Arguments are passed on as they come, since each character of a value is checked
    when it is read."""

    def __init__(self, context: ParserContext) -> None:
        self._part: Callable[[str, int], int] = self._content
        """Reads what comes next, from a position of a text on; returns where it stopped."""
        self._inside = False
        self._bad = False
        self._held = 0
        """Characters of ``OPEN``, ``]]`` or ``CLOSE`` that have been seen."""
        self._lines: list[str] = []
        """The open call as it was written, but for its last line."""
        self._line: list[str] = []
        """Its last line."""
        self._word: list[str] = []
        """The name or key that is being read."""
        self._keys: set[str] = set()
        self._reader = JsonReader()
        self._count = 0
        """Calls that have started."""
        self._events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of content; returns the events that are now certain."""
        pieces = [(text, 0)]
        while pieces:
            piece, at = pieces.pop()
            while at < len(piece):
                before, was_inside = at, self._inside
                at = self._part(piece, at)
                if was_inside and self._inside:
                    self._note(piece[before:at])
                if self._bad:
                    pieces += [(piece, at), (self._failed(), 0)]
                    break
        return self._taken()

    def finish(self) -> list[Event]:
        """At the end of the text: an open call fails, and what was held back is content."""
        if self._lines:
            self._events.append(ToolCallFailed(self._count - 1, "".join([*self._lines, *self._line])))
        else:
            self._text("".join(self._line) if self._inside else OPEN[: self._held])
        self._leave()
        return self._taken()

    def _content(self, piece: str, at: int) -> int:
        if not self._held:
            start = piece.find(OPEN[0], at)
            self._text(piece[at:] if start < 0 else piece[at:start])
            self._held = int(start >= 0)
            return len(piece) if start < 0 else start + 1
        if piece[at] == OPEN[self._held]:
            self._held += 1
            if self._held == len(OPEN):
                self._inside, self._held = True, 0
                self._line, self._word, self._keys = [OPEN], [], set()
                self._part = self._name
            return at + 1
        if piece[at] == OPEN[0]:  # behind two of them, the last two may be the marker's
            self._text(OPEN[0])
            return at + 1
        self._text(OPEN[: self._held])
        self._held = 0
        return at

    def _name(self, piece: str, at: int) -> int:
        end = _end(_NAME, piece, at)
        self._word.append(piece[at:end])
        if end < len(piece):
            self._part = self._name_end
            self._bad = not any(self._word)
        return end

    def _name_end(self, piece: str, at: int) -> int:
        if self._held < 2:
            self._held += 1
            return self._one("]", piece, at)
        at = _end(_SPACE, piece, at)
        if at == len(piece):
            return at
        if piece[at] == "\n":
            self._events.append(ToolCallStart(self._count, "".join(self._word)))
            self._count += 1
            self._part = self._line_start
        return self._one("\n", piece, at)

    def _line_start(self, piece: str, at: int) -> int:
        at = _end(_LINES, piece, at)
        if at == len(piece):
            return at
        self._held, self._word, self._reader = 0, [], JsonReader()
        if piece[at] == CLOSE[0]:
            self._part = self._close
        elif piece[at] == '"':
            self._part = self._quoted_key
        else:
            self._part = self._bare_key
            self._bad = not BARE_KEY.match(piece, at)
        return at

    def _close(self, piece: str, at: int) -> int:
        at, self._held = self._one(CLOSE[self._held], piece, at), self._held + 1
        if self._held == len(CLOSE) and not self._bad:
            self._arguments("}" if self._keys else "{}")
            self._events.append(ToolCallEnd(self._count - 1))
            self._leave()
        return at

    def _bare_key(self, piece: str, at: int) -> int:
        end = _end(BARE_KEY, piece, at)
        self._word.append(piece[at:end])
        if end < len(piece):
            self._part = self._equals
        return end

    def _quoted_key(self, piece: str, at: int) -> int:
        end = self._reader.read(piece, at)
        self._word.append(piece[at:end])
        self._bad = self._reader.state is State.BAD
        if self._reader.state is State.DONE:
            self._part = self._equals
        return end

    def _equals(self, piece: str, at: int) -> int:
        at = _end(_SPACE, piece, at)
        if at == len(piece):
            return at
        if piece[at] == "=":
            written = "".join(self._word)
            quoted = written if written.startswith('"') else f'"{written}"'
            key = json.loads(quoted)
            if key in self._keys:
                self._bad = True
                return at
            self._arguments(f"{', ' if self._keys else '{'}{quoted}: ")
            self._keys.add(key)
            self._reader, self._part = JsonReader(), self._before_value
        return self._one("=", piece, at)

    def _before_value(self, piece: str, at: int) -> int:
        at = _end(_SPACE, piece, at)
        if at < len(piece):
            self._part = self._value
        return at

    def _value(self, piece: str, at: int) -> int:
        end = self._reader.read(piece, at)
        self._arguments(piece[at:end])
        self._bad = self._reader.state is State.BAD
        if self._reader.state is State.DONE:
            self._part = self._value_end
        return end

    def _value_end(self, piece: str, at: int) -> int:
        at = _end(_SPACE, piece, at)
        if at == len(piece):
            return at
        self._part = self._line_start
        return self._one("\n", piece, at)

    def _one(self, wanted: str, piece: str, at: int) -> int:
        """Takes one character, which must be ``wanted``."""
        self._bad = piece[at] != wanted
        return at if self._bad else at + 1

    def _note(self, text: str) -> None:
        """Keeps what an open call is written with, in case it fails."""
        end = text.rfind("\n") + 1
        if end:
            self._lines += [*self._line, text[:end]]
            self._line = []
        self._line.append(text[end:])

    def _failed(self) -> str:
        """Ends a call that is none; returns what is to be read anew."""
        again = "".join(self._line)
        if self._lines:
            self._events.append(ToolCallFailed(self._count - 1, "".join(self._lines)))
        else:
            self._text(again[0])
            again = again[1:]
        self._leave()
        return again

    def _leave(self) -> None:
        self._part, self._inside, self._bad, self._held = self._content, False, False, 0
        self._lines, self._line, self._word, self._keys = [], [], [], set()

    def _text(self, text: str) -> None:
        if text:
            self._events.append(TextDelta(text))

    def _arguments(self, text: str) -> None:
        if text:
            self._events.append(ToolCallArguments(self._count - 1, text))

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _end(pattern: re.Pattern[str], piece: str, at: int) -> int:
    found = pattern.match(piece, at)
    return found.end() if found else at
