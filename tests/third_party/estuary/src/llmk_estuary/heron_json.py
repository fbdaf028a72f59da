"""Reads one JSON value of a text that comes in pieces, and knows at each character whether it can still be one."""

from __future__ import annotations

import re
from enum import Enum, auto

DEEPEST = 256
"""Lists and objects that may lie in each other, since those who read the value recurse."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORDS = {"t": "true", "f": "false", "n": "null"}
_DIGITS = "0123456789"
_NUMBER = {
    "-": {"0": "0", "1": "1"},
    "0": {".": ".", "e": "e"},
    "1": {"0": "1", "1": "1", ".": ".", "e": "e"},
    ".": {"0": "f", "1": "f"},
    "f": {"0": "f", "1": "f", "e": "e"},
    "e": {"0": "x", "1": "x", "+": "s", "-": "s"},
    "s": {"0": "x", "1": "x"},
    "x": {"0": "x", "1": "x"},
}
"""For each state of a number, the states that digits (1 for all but 0), point, sign and exponent lead to."""
_WHOLE_NUMBERS = "01fx"


class State(Enum):
    """What is expected next."""

    VALUE = auto()
    FIRST = auto()
    """A value, or the end of the list."""
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    WORD = auto()
    NAME = auto()
    """A member's name."""
    FIRST_NAME = auto()
    """A member's name, or the end of the object."""
    COLON = auto()
    NEXT = auto()
    """A comma, or the end of the list or object."""
    DONE = auto()
    BAD = auto()


class JsonReader:
    """Reads a value, without white space around it."""

    def __init__(self) -> None:
        self.state = State.VALUE
        self._open: list[str] = []
        """The ends of the lists and objects that are open."""
        self._names = False
        """Whether the string is a member's name."""
        self._rest = ""
        """What is to come of a word, or the state of a number."""
        self._hex = 0

    def read(self, text: str, at: int) -> int:
        """Reads on from ``text[at:]``; returns where it stopped: at the text's end, behind the value (``DONE``), or at
        the character that can't be (``BAD``)."""
        while at < len(text) and self.state not in (State.DONE, State.BAD):
            if self.state is State.STRING:
                at = _end(_PLAIN, text, at)
            elif self.state not in (State.ESCAPE, State.HEX, State.NUMBER, State.WORD) and self._open:
                at = _end(_SPACE, text, at)
            if at < len(text):
                at += self._take(text[at])
        return at

    def _take(self, character: str) -> int:
        """Takes a character; returns 0 if it isn't the value's, or is to be looked at again."""
        match self.state:
            case State.STRING:
                return self._in_string(character)
            case State.ESCAPE:
                self.state, self._hex = (State.HEX, 4) if character == "u" else (State.STRING, 0)
                return 1 if character in '"\\/bfnrtu' else self._bad()
            case State.HEX:
                self._hex -= 1
                self.state = State.HEX if self._hex else State.STRING
                return 1 if character in "0123456789abcdefABCDEF" else self._bad()
            case State.NUMBER:
                return self._in_number(character)
            case State.WORD:
                if not self._rest.startswith(character):
                    return self._bad()
                self._rest = self._rest[1:]
                return 1 if self._rest else self._ended()
            case State.COLON:
                self.state = State.VALUE
                return 1 if character == ":" else self._bad()
            case State.NEXT if character == ",":
                self.state = State.NAME if self._open[-1] == "}" else State.VALUE
                return 1
            case State.FIRST | State.FIRST_NAME | State.NEXT if character == self._open[-1]:
                self._open.pop()
                return self._ended()
            case State.NAME | State.FIRST_NAME if character == '"':
                self.state, self._names = State.STRING, True
                return 1
            case State.VALUE | State.FIRST:
                return self._start(character)
        return self._bad()

    def _start(self, character: str) -> int:
        if character == '"':
            self.state, self._names = State.STRING, False
        elif character in "[{":
            if len(self._open) == DEEPEST:
                return self._bad()
            self._open.append("]" if character == "[" else "}")
            self.state = State.FIRST if character == "[" else State.FIRST_NAME
        elif character in _WORDS:
            self.state, self._rest = State.WORD, _WORDS[character][1:]
        elif character == "-" or character in _DIGITS:
            self.state, self._rest = State.NUMBER, character if character in "-0" else "1"
        else:
            return self._bad()
        return 1

    def _in_string(self, character: str) -> int:
        if character == "\\":
            self.state = State.ESCAPE
            return 1
        if character != '"':
            return self._bad()
        if self._names:
            self.state, self._names = State.COLON, False
            return 1
        return self._ended()

    def _in_number(self, character: str) -> int:
        kind = "1" if character in "123456789" else "e" if character == "E" else character
        following = _NUMBER[self._rest].get(kind)
        if following:
            self._rest = following
            return 1
        if self._rest not in _WHOLE_NUMBERS:
            return self._bad()
        self._ended()
        return 0

    def _ended(self) -> int:
        self.state = State.NEXT if self._open else State.DONE
        return 1

    def _bad(self) -> int:
        self.state = State.BAD
        return 0


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
