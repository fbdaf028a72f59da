"""Where a JSON value ends, and what a JSON string says, found piece by piece."""

from __future__ import annotations

import re

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]<]')
_SCALAR_END = re.compile(r'[\s,:"{}\[\]<]')

_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}
_HEX = re.compile(r"[0-9a-fA-F]*")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_SURROGATE_BEGUN = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


class JsonValue:
    """Finds the end of one JSON value, which begins with the first character that is fed.

    It counts brackets and knows strings and escapes, and otherwise takes what comes: the value's reader is the one to
    judge it. Only ``<`` outside of a string makes it stop, as that begins a marker and no JSON.
    """

    def __init__(self) -> None:
        self.complete = False
        self.stopped = False
        self._depth = 0
        self._begun = False
        self._scalar = False
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Reads on from ``at``; returns where it stands then: behind the value, at what stopped it, or at the end."""
        if at < len(text) and not self._begun:
            self._begun = True
            self._scalar = text[at] not in '"{[<'
        while at < len(text) and not self.complete and not self.stopped:
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                at = self._read_string(text, at)
            elif self._scalar:
                end = _SCALAR_END.search(text, at)
                self.complete = end is not None
                at = end.start() if end else len(text)
            else:
                at = self._read_structure(text, at)
        return at

    def _read_string(self, text: str, at: int) -> int:
        found = _IN_STRING.search(text, at)
        if not found:
            return len(text)
        if found.group() == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.complete = self._depth == 0
        return found.end()

    def _read_structure(self, text: str, at: int) -> int:
        found = _OUTSIDE.search(text, at)
        if not found:
            return len(text)
        mark = found.group()
        if mark == "<":
            self.stopped = True
            return found.start()
        if mark == '"':
            self._in_string = True
        elif mark in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.complete = self._depth == 0
        return found.end()


class StringDecoder:
    """Decodes the inside of a JSON string. What is no escape stays as written, and so does half a surrogate pair."""

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> str:
        """Takes the next piece, without quotes; returns what it says, but for an escape that is not yet complete."""
        text, at, pieces = self._pending + text, 0, []
        self._pending = ""
        while at < len(text):
            escape = text.find("\\", at)
            if escape < 0:
                escape = len(text)
            pieces.append(text[at:escape])
            at = escape
            if at < len(text):
                size, said = _decode(text[at : at + 12])
                if not size:
                    self._pending = text[at:]
                    break
                pieces.append(said)
                at += size
        return "".join(pieces)

    def finish(self) -> str:
        """What was left of an escape when the string ended."""
        pending, self._pending = self._pending, ""
        return pending


def _decode(text: str) -> tuple[int, str]:
    """The escape at the beginning of ``text``: its size, 0 where more is needed, and what it says."""
    if len(text) < 2:
        return 0, ""
    if text[1] != "u":
        return 2, _SIMPLE.get(text[1], text[:2])
    digits = _HEX.match(text, 2, 6)
    if digits is None or digits.end() < 6:
        return (0, "") if digits is not None and digits.end() == len(text) else (2, text[:2])
    code = int(text[2:6], 16)
    if not 0xD800 <= code < 0xE000:
        return 6, chr(code)
    if code < 0xDC00:
        rest = text[6:]
        if _LOW_SURROGATE.fullmatch(rest):
            low = int(rest[2:], 16)
            return 12, chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if _LOW_SURROGATE_BEGUN.fullmatch(rest):
            return 0, ""
    return 6, text[:6]
