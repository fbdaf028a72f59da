"""Incremental validation of JSON, and decoding of JSON strings."""

from __future__ import annotations

import re
from collections.abc import Callable

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_KINDS = {**dict.fromkeys("123456789", "digit"), **dict.fromkeys("eE", "exponent"), **dict.fromkeys("+-", "sign")} | {
    "0": "zero",
    ".": "point",
}
"""What a character is in a number; none of these for any other character."""
_NUMBER: dict[str, dict[str, str]] = {
    "minus": {"zero": "zero", "digit": "integer"},
    "zero": {"point": "point", "exponent": "exponent"},
    "integer": {"zero": "integer", "digit": "integer", "point": "point", "exponent": "exponent"},
    "point": {"zero": "fraction", "digit": "fraction"},
    "fraction": {"zero": "fraction", "digit": "fraction", "exponent": "exponent"},
    "exponent": {"zero": "digits", "digit": "digits", "sign": "sign"},
    "sign": {"zero": "digits", "digit": "digits"},
    "digits": {"zero": "digits", "digit": "digits"},
}
"""The next state of a number, by its state and the kind of the next character."""
_NUMBER_ENDS = frozenset({"zero", "integer", "fraction", "digits"})

_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_SURROGATE_PREFIX = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


class JsonValue:
    """Reads one JSON value, starting with the first character that is fed, strictly by RFC 8259.

    ``stopped`` is set at the first invalid character: the text before it is a prefix of some JSON text. ``NaN`` and
    ``Infinity`` are not JSON, nor is a line break inside a string.
    """

    _rest: str
    """The characters that must follow in a literal or an escape (``x``: a hexadecimal digit)."""

    _number: str
    """The state of a number."""

    def __init__(self) -> None:
        self.complete = False
        self.stopped = False
        self._open: list[str] = []
        self._state: Callable[[str, int], int] = self._value
        self._is_key = False

    def feed(self, text: str, at: int) -> int:
        """Reads ``text`` from ``at`` on; returns the position after the value, of the invalid character, or the end."""
        while at < len(text) and not self.complete and not self.stopped:
            at = self._state(text, at)
        return at

    def _value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at) if self._open else at
        if at == len(text):
            return at
        mark = text[at]
        if mark == '"':
            self._is_key = False
            self._state = self._string
        elif mark in "{[":
            self._open.append(mark)
            self._state = self._first_key if mark == "{" else self._first_item
        elif mark in _LITERALS:
            self._rest = _LITERALS[mark][1:]
            self._state = self._literal
        elif mark == "-" or mark in _DIGITS:
            self._number = "minus" if mark == "-" else "zero" if mark == "0" else "integer"
            self._state = self._in_number
        else:
            return self._stop(at)
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        return self._closed(at) if text.startswith("}", at) else self._key(text, at)

    def _first_item(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if text.startswith("]", at):
            return self._closed(at)
        if at < len(text):
            self._state = self._value
        return at

    def _key(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        self._is_key = True
        self._state = self._string
        return at + 1 if text[at] == '"' else self._stop(at)

    def _colon(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        self._state = self._value
        return at + 1 if text[at] == ":" else self._stop(at)

    def _after_value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        inside_object = self._open[-1] == "{"
        if text[at] == ",":
            self._state = self._key if inside_object else self._value
            return at + 1
        return self._closed(at) if text[at] == ("}" if inside_object else "]") else self._stop(at)

    def _closed(self, at: int) -> int:
        self._open.pop()
        self._ended()
        return at + 1

    def _ended(self) -> None:
        """Called at the end of a value."""
        self.complete = not self._open
        self._state = self._after_value

    def _string(self, text: str, at: int) -> int:
        found = _PLAIN.match(text, at)
        at = found.end() if found else at
        if at == len(text):
            return at
        if text[at] == '"':
            if self._is_key:
                self._state = self._colon
            else:
                self._ended()
        elif text[at] == "\\":
            self._state = self._escape
        else:
            return self._stop(at)
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] != "u" and text[at] not in _SIMPLE:
            return self._stop(at)
        self._rest = "xxxx" if text[at] == "u" else ""
        self._state = self._hex_digits if self._rest else self._string
        return at + 1

    def _hex_digits(self, text: str, at: int) -> int:
        if text[at] not in _HEX_DIGITS:
            return self._stop(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = self._string
        return at + 1

    def _literal(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            return self._stop(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._ended()
        return at + 1

    def _in_number(self, text: str, at: int) -> int:
        follows = _NUMBER[self._number].get(_KINDS.get(text[at], ""))
        if follows is not None:
            self._number = follows
            return at + 1
        if self._number not in _NUMBER_ENDS:
            return self._stop(at)
        self._ended()
        return at

    def _stop(self, at: int) -> int:
        self.stopped = True
        return at

    @staticmethod
    def _skip_space(text: str, at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at


class Brackets:
    """Finds the closing bracket of the opening bracket that is fed first, in text that need not be valid: it counts
    brackets, and skips strings and escapes. It only stops at ``<`` outside of a string, which starts a marker.

    Args:
        opening: the opening brackets.
        closing: the closing brackets.
        quotes: what strings start and end with.
    """

    def __init__(self, opening: str = "{[", closing: str = "}]", quotes: str = '"') -> None:
        self.complete = False
        self.stopped = False
        self.depth = 0
        self._opening = opening
        self._closing = closing
        self._outside = re.compile(f"[{re.escape(opening + closing + quotes)}<]")
        self._quote = ""
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Reads ``text`` from ``at`` on; returns the position after the closing bracket, of the ``<``, or the end."""
        while at < len(text) and not self.complete and not self.stopped:
            if self._escaped:
                self._escaped = False
                at += 1
            else:
                at = self._read_string(text, at) if self._quote else self._read_structure(text, at)
        return at

    def _read_string(self, text: str, at: int) -> int:
        found = re.compile(rf"[{self._quote}\\]").search(text, at)
        if not found:
            return len(text)
        self._escaped = found.group() == "\\"
        if not self._escaped:
            self._quote = ""
        return found.end()

    def _read_structure(self, text: str, at: int) -> int:
        found = self._outside.search(text, at)
        if not found:
            return len(text)
        mark = found.group()
        if mark == "<":
            self.stopped = True
            return found.start()
        if mark in self._opening:
            self.depth += 1
        elif mark in self._closing:
            self.depth -= 1
            self.complete = self.depth <= 0
        else:
            self._quote = mark
        return found.end()


class StringDecoder:
    """Decodes the contents of a valid JSON string. Half surrogate pairs stay as written."""

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> str:
        """Takes the next part, without quotes; returns the decoded text, without an incomplete escape at its end."""
        text, at, pieces = self._pending + text, 0, []
        self._pending = ""
        while at < len(text):
            escape = text.find("\\", at)
            end = escape if escape >= 0 else len(text)
            pieces.append(text[at:end])
            at = end
            if at < len(text):
                size, said = _decode(text[at : at + 12])
                if not size:
                    self._pending = text[at:]
                    break
                pieces.append(said)
                at += size
        return "".join(pieces)

    def finish(self) -> str:
        """The rest of an incomplete escape at the end of the string."""
        pending, self._pending = self._pending, ""
        return pending


def _decode(text: str) -> tuple[int, str]:
    """The escape at the start of ``text``: its size (0 if incomplete), and the decoded text."""
    if len(text) < 2:
        return 0, ""
    if text[1] != "u":
        return 2, _SIMPLE[text[1]]
    if len(text) < 6:
        return 0, ""
    code = int(text[2:6], 16)
    if not 0xD800 <= code < 0xE000:
        return 6, chr(code)
    if code < 0xDC00:
        rest = text[6:]
        if _LOW_SURROGATE.fullmatch(rest):
            low = int(rest[2:], 16)
            return 12, chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if _LOW_SURROGATE_PREFIX.fullmatch(rest):
            return 0, ""
    return 6, text[:6]
