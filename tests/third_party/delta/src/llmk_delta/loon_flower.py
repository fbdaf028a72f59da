"""The dialect of Qwen-Agent's templates, as an incremental state machine, and its writer.

::

    ✿FUNCTION✿: weather
    ✿ARGS✿: {"city": "Oslo"}

Nothing closes a call: its arguments, a JSON object, end with their last brace. One line break behind it belongs to the
call. ``✿RETURN✿:`` starts the answer behind calls, and is dropped with a space after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import (
    Event,
    ParserContext,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    WrittenCall,
)

CALL, ARGUMENTS, ANSWER = "✿FUNCTION✿:", "✿ARGS✿:", "✿RETURN✿:"
MARKERS = re.compile(f"{CALL}|{ANSWER}")
LONGEST_MARKER = len(CALL)
NAME = r"[\w.:/-]{1,128}"
HEADER = re.compile(rf"[ \t]{{0,8}}({NAME})[ \t\r]{{0,8}}\n[ \t\r\n]{{0,8}}{ARGUMENTS}[ \t\r\n]{{0,8}}(?={{)")
"""What stands between the marker of a call and the brace that its arguments start with."""
MOST_DEEP = 200
PAIRS = {"}": "{", "]": "["}
OUTSIDE = re.compile(r"[^\d \t\r\n,:.+\-truefalsnE]", re.ASCII)
"""What a scan of JSON stops at outside of texts: a quote, a bracket, or what JSON doesn't have there."""
INSIDE = re.compile(r'["\\\x00-\x1f]')
"""What it stops at inside of one."""


def _start_of(*parts: str) -> re.Pattern[str]:
    pattern = ""
    for part in reversed(parts):
        pattern = f"(?:{part}{pattern})?"
    return re.compile(pattern)


HEADER_START = _start_of(r"[ \t]{0,8}", NAME, r"[ \t\r]{0,8}", r"\n[ \t\r\n]{0,8}", *ARGUMENTS, r"[ \t\r\n]{0,8}")


class Flower:
    """Follows ``llmk.api.ToolParser``. Arguments are passed on as they come; what turns out not to be JSON fails."""

    def __init__(self, context: ParserContext) -> None:
        self._read: Callable[[], list[Event]] = self._read_text
        self._text, self._at = "", 0
        """Text that is not passed on, and how far it was read. In a header, all of it behind the marker is kept."""
        self._index = -1
        self._call: list[str] = []
        """The open call as it was written, its header first."""
        self._open: list[str] = []
        """The brackets that are open in its arguments."""
        self._quoted = self._escaped = False

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of content; returns the events that are now certain."""
        self._text, self._at = self._text[self._at :] + text, 0
        events: list[Event] = []
        before = None
        while self._at < len(self._text) and before != (self._at, self._read):
            before = self._at, self._read
            events += self._read()
        return events

    def finish(self) -> list[Event]:
        """At the end of the text: a call that is not complete fails, and what was held back is text."""
        held, self._text, self._at = self._text[self._at :], "", 0
        state, self._read = self._read, self._read_text
        if state == self._read_arguments:
            return [ToolCallFailed(self._index, self._written())]
        return _text(CALL + held if state == self._read_header else held)

    def _read_text(self) -> list[Event]:
        marker = MARKERS.search(self._text, self._at)
        start = self._at
        if marker is None:
            self._at = len(self._text) - _held(self._text, start)
            return _text(self._text[start : self._at])
        self._at = marker.end()
        self._read = self._read_header if marker[0] == CALL else self._read_space
        return _text(self._text[start : marker.start()])

    def _read_header(self) -> list[Event]:
        header = HEADER.match(self._text, self._at)
        if header is None:
            if HEADER_START.fullmatch(self._text, self._at):
                return []
            self._read = self._read_text
            return _text(CALL)
        self._at = header.end()
        self._call, self._open = [CALL + header[0]], []
        self._quoted = self._escaped = False
        self._index += 1
        self._read = self._read_arguments
        return [ToolCallStart(self._index, header[1])]

    def _read_arguments(self) -> list[Event]:
        start = at = self._at
        while at < len(self._text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            stop = (INSIDE if self._quoted else OUTSIDE).search(self._text, at)
            if stop is None:
                at = len(self._text)
                break
            if not self._goes_on(stop[0]):
                return self._fail(start, stop.start())
            at = stop.end()
            if not self._open:
                return self._end(start, at)
        self._at = at
        return self._arguments(self._text[start:at])

    def _goes_on(self, letter: str) -> bool:
        """Whether what a scan stopped at may stand there."""
        if self._quoted:
            self._quoted, self._escaped = letter != '"', letter == "\\"
            return letter in '"\\'
        if letter == '"':
            self._quoted = True
            return True
        if letter in "{[":
            self._open.append(letter)
            return len(self._open) <= MOST_DEEP
        return letter in PAIRS and self._open.pop() == PAIRS[letter]

    def _end(self, start: int, end: int) -> list[Event]:
        """The arguments have their last brace before ``end``."""
        self._at = end
        events = self._arguments(self._text[start:end])
        if not _is_json("".join(self._call[1:])):
            self._read = self._read_text
            return [ToolCallFailed(self._index, self._written())]
        self._read = self._read_break
        self._call = []
        return [*events, ToolCallEnd(self._index)]

    def _fail(self, start: int, end: int) -> list[Event]:
        """What stands at ``end`` is no JSON. A call may have started in a text whose quote is missing."""
        self._call.append(self._text[start:end])
        written = self._written()
        cut = written.rfind(CALL, len(CALL))
        if cut < 0:
            cut = len(written)
        back = len(written) - cut
        if back > end:
            self._text, self._at = written[cut:] + self._text[end:], 0
        else:
            self._at = end - back
        self._read = self._read_text
        return [ToolCallFailed(self._index, written[:cut])]

    def _arguments(self, text: str) -> list[Event]:
        self._call.append(text)
        return [ToolCallArguments(self._index, text)]

    def _written(self) -> str:
        """The whole of the open call, which is then closed."""
        written, self._call = "".join(self._call), []
        return written

    def _read_break(self) -> list[Event]:
        return self._read_one("\n")

    def _read_space(self) -> list[Event]:
        return self._read_one(" ")

    def _read_one(self, blank: str) -> list[Event]:
        self._at += self._text[self._at] == blank
        self._read = self._read_text
        return []


def _held(text: str, start: int) -> int:
    """How many characters at the end of a text may become a marker."""
    sizes = range(min(len(text) - start, LONGEST_MARKER - 1), 0, -1)
    return next((size for size in sizes if CALL.startswith(text[-size:]) or ANSWER.startswith(text[-size:])), 0)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _text(text: str) -> list[Event]:
    return [TextDelta(text)] if text else []


class FlowerWriter:
    """Follows ``llmk.api.CallWriter``: a call takes two lines, and calls follow each other."""

    trigger = CALL

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """The calls as the model writes them."""
        lines = [
            f"{CALL} {call.name}\n{ARGUMENTS} {json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)}"
            for call in calls
        ]
        return "\n".join(lines)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """The grammar of one call, or of one and more."""
        rules = [f"start: call{f' ({_quoted(chr(10))} call)*' if many else ''}"]
        rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        for number, tool in enumerate(tools):
            if not re.fullmatch(NAME, tool["name"]):
                raise ValueError(f"a tool can't be called by the name {tool['name']!r}")
            name, arguments = _quoted(f" {tool['name']}\n"), json.dumps(_schema(tool), ensure_ascii=False)
            rules.append(f"call_{number}: {marker(CALL)} {name} {marker(ARGUMENTS)} {_quoted(' ')} arguments_{number}")
            rules.append(f"arguments_{number}: %json {arguments}")
        return "\n".join(rules) + "\n"


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, of which each property that is listed comes once."""
    schema: dict[str, Any] = {**(tool.get("parameters") or {}), "type": "object"}
    if not schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}:
        schema.setdefault("additionalProperties", False)
    return schema | {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


WRITER = FlowerWriter()
