"""Reads a JSON object piece by piece, each character once, and says where it ends or stops being JSON."""

from __future__ import annotations

import re

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
"""What stands in a string without an escape."""
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_DIGITS = "0123456789"
_NUMBER = {
    "-": {"0": "0", "123456789": "int"},
    "0": {".": ".", "eE": "e"},
    "int": {_DIGITS: "int", ".": ".", "eE": "e"},
    ".": {_DIGITS: "fraction"},
    "fraction": {_DIGITS: "fraction", "eE": "e"},
    "e": {"+-": "sign", _DIGITS: "exponent"},
    "sign": {_DIGITS: "exponent"},
    "exponent": {_DIGITS: "exponent"},
}
"""The states of a number, and what leads from one to the next."""
_NUMBER_ENDS = ("0", "int", "fraction", "exponent")
_MAX_DEPTH = 200
_MAX_NUMBER = 4000
"""Characters. Python reads whole numbers of up to 4,300 digits."""


class JsonObject:
    """``feed`` takes pieces; ``done`` and ``failed`` say what became of the object."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._open: list[str] = []
        """What closes the open objects and lists, from the outermost."""
        self._want = "object"
        self._rest = ""
        """What is left of a literal."""
        self._number = ""
        self._length = 0
        self._hex = 0
        self._key = False

    def feed(self, text: str, at: int) -> int:
        """Reads ``text`` from ``at``. Returns where it stopped: behind the object, at what is no JSON, or at the
        end."""
        while at < len(text) and not self.done:
            if self._want == "string":
                at = _end(_PLAIN, text, at)
            elif self._want in ("object", "value", "first_value", "key", "first_key", "colon", "comma"):
                at = _end(_SPACE, text, at)
            if at == len(text):
                break
            if not self._take(text[at]):
                if self._want == "number" and self._number in _NUMBER_ENDS:
                    self._want = "comma"
                    continue
                self.failed = True
                break
            at += 1
        return at

    def _take(self, char: str) -> bool:
        """Whether ``char`` may come next; it is then taken."""
        match self._want:
            case "string":
                return self._take_in_string(char)
            case "escape":
                self._want, self._hex = ("hex", 4) if char == "u" else ("string", 0)
                return char in '"\\/bfnrtu'
            case "hex":
                self._hex -= 1
                self._want = "hex" if self._hex else "string"
                return char in "0123456789abcdefABCDEF"
            case "number":
                return self._take_in_number(char)
            case "literal":
                taken, self._rest = char == self._rest[0], self._rest[1:]
                self._want = "literal" if self._rest else "comma"
                return taken
            case "key" | "first_key" if char == '"':
                self._want, self._key = "string", True
                return True
            case "colon" if char == ":":
                self._want = "value"
                return True
            case "comma" if char == ",":
                self._want = "key" if self._open[-1] == "}" else "value"
                return True
            case "first_key" | "first_value" | "comma" if char == self._open[-1]:
                self._open.pop()
                self._want = "comma"
                self.done = not self._open
                return True
            case "value" | "first_value":
                return self._start_value(char)
            case "object" if char == "{":
                return self._start_value(char)
        return False

    def _start_value(self, char: str) -> bool:
        if char == '"':
            self._want, self._key = "string", False
        elif char in "{[":
            self._open.append("}" if char == "{" else "]")
            self._want = "first_key" if char == "{" else "first_value"
            return len(self._open) <= _MAX_DEPTH
        elif char in _LITERALS:
            self._want, self._rest = "literal", _LITERALS[char]
        elif char == "-" or char in _DIGITS:
            self._want, self._number, self._length = "number", char if char in "-0" else "int", 1
        else:
            return False
        return True

    def _take_in_string(self, char: str) -> bool:
        if char == '"':
            self._want = "colon" if self._key else "comma"
        elif char == "\\":
            self._want = "escape"
        else:
            return False
        return True

    def _take_in_number(self, char: str) -> bool:
        self._length += 1
        following = next((state for chars, state in _NUMBER[self._number].items() if char in chars), "")
        if following and self._length <= _MAX_NUMBER:
            self._number = following
            return True
        return False


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match at ``at`` of a pattern that matches everywhere ends."""
    found = pattern.match(text, at)
    return found.end() if found else at
