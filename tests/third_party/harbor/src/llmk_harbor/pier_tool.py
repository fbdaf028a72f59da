"""A dialect in which models call tools as on a command line, a line for each option.

::

    <<call get_weather
    --city "Paris"
    --days [1, 2]
    >>

A value is JSON, and may go over several lines. The name of an option that isn't a plain word is a JSON string, too.
Calls may follow each other at once. What only starts like a call is text: a call is one as soon as an option or its
end follows the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from llmk.api import (
    Event,
    ParserContext,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    ToolParser,
)

OPENING = "<<call "
CLOSING = ">>"
LONGEST_NAME = 1 << 16
"""Characters of a tool's name, which are held back until it is known whether it is one."""
MOST_SPACE = 64
"""White space behind the name, for the same reason."""
DEEPEST = 128
"""Nested lists and objects of a value. Readers of JSON have limits, too."""
LONGEST_NUMBER = 1000

NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
SPACE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")


class _JsonValue:
    """Reads one JSON value, character by character, and says how far it is in order."""

    def __init__(self, *, only_string: bool = False) -> None:
        self._expects = "string" if only_string else "value"
        self._closers: list[str] = []
        self._word = ""
        self._hex = 0
        self._is_key = only_string
        self.done = False

    def read(self, text: str, at: int) -> tuple[int, str]:
        """Reads on from ``text[at:]``. Returns the position behind what belongs to the value, and what of it is now
        certain. If the value is not ``done``, nor the text at its end, the next character is wrong."""
        pieces: list[str] = []
        while at < len(text) and not self.done:
            if self._expects == "in string" and (run := _PLAIN.match(text, at)):
                pieces.append(run[0])
                at = run.end()
            elif self._expects == "word" and not _in_word(text[at]):
                if not (self._word in _LITERALS or _NUMBER.fullmatch(self._word)):
                    break
                pieces.append(self._word)
                self._word = ""
                self._end()  # the character is not the word's
            elif self._step(text[at]):
                if not self._word:
                    pieces.append(text[at])
                at += 1
            else:
                break
        return at, "".join(pieces)

    def _step(self, char: str) -> bool:
        """Takes a character, or refuses it."""
        match self._expects:
            case "word":
                self._word += char
                known = self._word[0] in "-0123456789" or any(each.startswith(self._word) for each in _LITERALS)
                return known and len(self._word) <= LONGEST_NUMBER
            case "in string":
                return self._string(char)
            case "escape":
                self._hex = 4
                self._expects = "hex" if char == "u" else "in string"
                return char in '"\\/bfnrtu'
            case "hex":
                self._hex -= 1
                self._expects = "hex" if self._hex else "in string"
                return char in _HEX
            case "string" | "key" | "first key" if char not in SPACE:
                return self._open_key(char)
            case "colon" if char not in SPACE:
                self._expects = "value"
                return char == ":"
            case "next" if char not in SPACE:
                return self._next(char)
            case _ if char not in SPACE:
                return self._value(char)
        return self._expects != "string"

    def _string(self, char: str) -> bool:
        if char == '"':
            if self._is_key and self._closers:
                self._expects, self._is_key = "colon", False
            else:
                self._end()
        elif char == "\\":
            self._expects = "escape"
        else:
            return False
        return True

    def _open_key(self, char: str) -> bool:
        if char == "}" and self._expects == "first key":
            self._close()
            return True
        self._expects, self._is_key = "in string", True
        return char == '"'

    def _next(self, char: str) -> bool:
        if char == self._closers[-1]:
            self._close()
            return True
        self._expects = "key" if self._closers[-1] == "}" else "value"
        return char == ","

    def _value(self, char: str) -> bool:
        if char == "]" and self._expects == "first value":
            self._close()
        elif char == '"':
            self._expects, self._is_key = "in string", False
        elif char in "{[":
            self._closers.append("}" if char == "{" else "]")
            self._expects = "first key" if char == "{" else "first value"
            return len(self._closers) <= DEEPEST
        elif char in "-0123456789tfn":
            self._expects, self._word = "word", char
        else:
            return False
        return True

    def _close(self) -> None:
        self._closers.pop()
        self._end()

    def _end(self) -> None:
        self._expects = "next"
        self.done = not self._closers


class CommandLineParser(ToolParser):
    """Reads calls as they arrive. What is kept is what may be needed: the start of a marker, or the text of an open
    call, which becomes content if the call fails."""

    def __init__(self, context: ParserContext) -> None:
        self._rest = ""
        self._calls = 0
        self._reader: _Call | None = None

    def push(self, text: str) -> Iterable[Event]:
        """The events that are certain with ``text``."""
        return list(self._events(text, ended=False))

    def finish(self) -> Iterable[Event]:
        """An open call fails; what was held back is text."""
        return list(self._events("", ended=True))

    def _events(self, text: str, *, ended: bool) -> Iterator[Event]:
        text, self._rest = self._rest + text, ""
        at = 0
        while True:
            if self._reader is None:
                found = text.find(OPENING, at)
                if found < 0:
                    kept = 0 if ended else _held_back(text, at)
                    if at < len(text) - kept:
                        yield TextDelta(text[at : len(text) - kept])
                    self._rest = text[len(text) - kept :]
                    return
                if found > at:
                    yield TextDelta(text[at:found])
                at = found + len(OPENING)
                self._reader = _Call(self._calls)
            call = self._reader
            at, events = call.read(text, at)
            yield from events
            if call.state != "end":
                if at == len(text) and not ended:
                    return
                # A call may follow in what was taken for this one's, such as a string that was not closed.
                failed, behind = call.given_up()
                text, at = (text, at - len(behind)) if len(behind) <= at else (behind + text[at:], 0)
                yield ToolCallFailed(call.index, failed) if call.started else TextDelta(failed)
            self._calls += call.started
            self._reader = None


class _Call:
    """One call, behind its opening marker."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = "name"
        self.started = False
        self._taken = [OPENING]
        self._name: list[str] = []  # by character: adding to a text would copy it each time
        self._space = 0
        self._options = 0
        self._named = False
        self._value = _JsonValue()

    def given_up(self) -> tuple[str, str]:
        """What was read, before and from the next opening marker in it."""
        whole = "".join(self._taken)
        cut = whole.find(OPENING, len(OPENING))
        return (whole, "") if cut < 0 else (whole[:cut], whole[cut:])

    def read(self, text: str, at: int) -> tuple[int, list[Event]]:
        """Reads on from ``text[at:]``. If the call is not at its end, nor is the text, the next character is wrong."""
        start = at
        pieces: list[str] = []
        was_started = self.started
        while at < len(text) and self.state != "end":
            if self.state in ("quoted", "value"):
                at, piece = self._value.read(text, at)
                pieces.append(piece)
                if not self._value.done:
                    break
                if self.state == "quoted":
                    pieces.append(": ")
                self.state, self._space = ("before value" if self.state == "quoted" else "between"), 0
            elif self._opens_value(text[at]):
                continue
            elif self._step(text[at], pieces):
                at += 1
            else:
                break
        self._taken.append(text[start:at])
        events: list[Event] = []
        if self.started and not was_started:
            events.append(ToolCallStart(self.index, "".join(self._name)))
        if arguments := "".join(pieces):
            events.append(ToolCallArguments(self.index, arguments))
        if self.state == "end":
            events.append(ToolCallEnd(self.index))
        return at, events

    def _opens_value(self, char: str) -> bool:
        """Whether JSON starts with this character, which is then its first: an option's name or its value."""
        if self.state == "option" and not self._named and char == '"':
            self.state, self._value = "quoted", _JsonValue(only_string=True)
        elif self.state == "before value" and self._space and char not in SPACE:
            self.state, self._value = "value", _JsonValue()
        else:
            return False
        return True

    def _step(self, char: str, pieces: list[str]) -> bool:
        """Takes a character, or refuses it."""
        if char in SPACE:
            return self._blank(pieces)
        match self.state:
            case "name" if NAME.fullmatch(char):
                self._name.append(char)
                return len(self._name) <= LONGEST_NAME
            case "between" if char == "-" and self._space:
                self.state = "dash"
            case "between" if char == ">":
                self.state = "closing"
            case "dash" if char == "-":
                pieces.append(", " if self._options else "{")
                self.started, self.state, self._named = True, "option", False
                self._options += 1
            case "closing" if char == ">":
                pieces.append("}" if self._options else "{}")
                self.started, self.state = True, "end"
            case "option" if NAME.fullmatch(char):
                pieces.append(char if self._named else f'"{char}')
                self._named = True
            case _:
                return False
        return True

    def _blank(self, pieces: list[str]) -> bool:
        self._space += 1
        if self.state == "name" and self._name:
            self.state, self._space = "between", 1
        elif self.state == "option" and self._named:
            self.state, self._space = "before value", 1
            pieces.append('": ')
        elif self.state not in ("between", "before value"):
            return False
        return self.started or self._space <= MOST_SPACE


def _in_word(char: str) -> bool:
    """Whether a number or literal may have this character, so that it doesn't end before it."""
    return (char.isascii() and char.isalnum()) or char in "+-."


def _held_back(text: str, at: int) -> int:
    """How many characters at the end of ``text[at:]`` may be the start of a call."""
    for size in range(min(len(OPENING) - 1, len(text) - at), 0, -1):
        if text.endswith(OPENING[:size]):
            return size
    return 0
