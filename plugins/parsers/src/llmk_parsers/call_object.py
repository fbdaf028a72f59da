"""One tool call written as a JSON object, ``{"name": ..., "arguments": {...}}``: the shape of most JSON dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from llmk.api import Event, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk_parsers.json_value import JsonValue, StringDecoder

_ARGUMENTS = ("arguments", "parameters")
_SPACE = re.compile(r"\s*")
_NOT_IN_NAME = re.compile(r"[<\x00-\x1f]")
_LONGEST_NAME = 256

Step = Callable[[str, int], int]


class CallArguments:
    """Reads the value of a call's arguments, and returns it as JSON text for the client.

    An object (or array) is returned as it is written. A string that contains an object, as models trained on OpenAI's
    format write it, is unwrapped and must contain JSON; any other string stays a string literal. ``null`` and an empty
    string mean no arguments.
    """

    def __init__(self) -> None:
        self._value = JsonValue()
        self._read: Callable[[str], str] | None = None
        self._decoder = StringDecoder()
        self._literal: list[str] = []
        self._inside: JsonValue | None = None
        """The contents of an unwrapped string."""
        self._inside_stopped = False

    @property
    def complete(self) -> bool:
        """Whether the value is complete and valid JSON."""
        return self._value.complete and not self.stopped

    @property
    def stopped(self) -> bool:
        """Whether it contains invalid JSON."""
        broken_off = self._value.complete and self._inside is not None and not self._inside.complete
        return self._value.stopped or self._inside_stopped or broken_off

    def feed(self, text: str, at: int) -> tuple[int, str]:
        """Reads ``text`` from ``at`` on; returns the new position (see :meth:`JsonValue.feed`) and the text to return
        to the client."""
        read = self._read
        if read is None:
            read = self._string if text[at] == '"' else str if text[at] in "{[" else self._scalar
            self._read = read
        end = self._value.feed(text, at)
        return end, read(text[at:end])

    def _scalar(self, text: str) -> str:
        self._literal.append(text)
        if not self._value.complete:
            return ""
        literal = "".join(self._literal)
        return "{}" if literal == "null" else literal

    def _string(self, text: str) -> str:
        """Buffers the string until it is clear whether it contains an object."""
        said = self._decoded(text if self._literal else text[1:]).lstrip()
        self._literal.append(text)
        if said.startswith("{"):
            self._read = self._unwrapped
            return self._checked(said)
        if said:
            self._read = str
            return "".join(self._literal)
        return "{}" if self._value.complete else ""

    def _unwrapped(self, text: str) -> str:
        return self._checked(self._decoded(text))

    def _checked(self, said: str) -> str:
        """The part of ``said``, the next part of an unwrapped string, that continues valid JSON."""
        inside = self._inside = self._inside or JsonValue()
        end = inside.feed(said, 0)
        self._inside_stopped |= inside.stopped or bool(said[end:].strip())
        return said[:end]

    def _decoded(self, text: str) -> str:
        if not self._value.complete:
            return self._decoder.feed(text)
        return self._decoder.feed(text.removesuffix('"')) + self._decoder.finish()


class CallObject:
    """Reads the object that starts at the first character fed; :meth:`take` returns the resulting events.

    The call starts as soon as its name and the start of its arguments are known. Its arguments are streamed as long as
    they are the prefix of valid JSON; the call ends with them. Input that can't be such an object sets ``bad``. If that
    happens before the end of the arguments, or the arguments are truncated, ``raw`` is the text read so far; a call
    that has started then fails with it.

    Args:
        index: the call's number.
        strict: for dialects without markers, where any object may be the answer itself: keys other than a call's, and a
            call without arguments, are ``bad``.
    """

    def __init__(self, index: int, *, strict: bool = False) -> None:
        self.index = index
        self.started = self.done = self.bad = self.failed = False
        self._out: list[Event] = []
        self._strict = strict
        self._step: Step = self._start
        self._raw: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._value = JsonValue()
        self._literal: list[str] = []
        self._literal_size = 0
        self._then: Callable[[str], None] = self._after_key
        self._arguments: CallArguments | None = None
        self._held: list[str] = []
        self._ended = False

    @property
    def raw(self) -> str:
        """The text read so far, if the call has not ended."""
        return "".join(self._raw)

    def feed(self, text: str, at: int) -> int:
        """Reads ``text`` from ``at`` on; returns the position after the object, of the invalid character, or the
        end."""
        start = at
        while at < len(text) and not (self.done or self.bad):
            at = self._step(text, at)
        if not self._ended:
            self._raw.append(text[start:at])
            if self.bad:
                self._fail()
        return at

    def finish(self) -> None:
        """The text has ended inside the object."""
        self.bad = not self.done
        self._fail()

    def take(self) -> list[Event]:
        """The events since the last time."""
        events, self._out = self._out, []
        return events

    def _start(self, text: str, at: int) -> int:
        self._step = self._before_key
        return self._expect(text, at, "{")

    def _before_key(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if text.startswith("}", at):
            return self._close(at)
        if at < len(text):
            self._read_literal(self._after_key)
            self.bad = text[at] != '"'
        return at

    def _after_key(self, literal: str) -> None:
        self._key = literal
        self.bad = self._strict and literal not in ("name", *_ARGUMENTS, "type", "id")
        self._step = self._colon

    def _colon(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at < len(text):
            self._step = self._before_value
            return self._expect(text, at, ":")
        return at

    def _before_value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if text[at] in ",}]:":
            self.bad = True
        elif self._key == "name" and self._name is None:
            self._read_literal(self._after_name)
            self.bad = text[at] != '"'
        elif self._key in _ARGUMENTS and self._arguments is None:
            self._arguments = CallArguments()
            self._step = self._in_arguments
        else:
            self._value = JsonValue()
            self._step = self._in_other
        return at

    def _in_other(self, text: str, at: int) -> int:
        return self._after_value(self._value.feed(text, at), self._value)

    def _in_arguments(self, text: str, at: int) -> int:
        assert self._arguments is not None
        end, piece = self._arguments.feed(text, at)
        self._pass_on(piece)
        return self._after_value(end, self._arguments)

    def _after_value(self, end: int, value: JsonValue | CallArguments) -> int:
        if value.complete:
            self._step = self._after_member
            self._end_if_complete()
        elif value.stopped:
            self.bad = True
        return end

    def _after_member(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if text.startswith("}", at):
            return self._close(at)
        if at < len(text):
            self._step = self._before_key
            return self._expect(text, at, ",")
        return at

    def _close(self, at: int) -> int:
        if self._name is not None and self._arguments is None and not self._strict:
            self._pass_on("{}")
            self._end()
        self.done = self.started
        self.bad = not self.started
        return at + 1

    def _after_name(self, name: str) -> None:
        self._name = name
        self.bad = not name
        self._step = self._after_member
        if name and self._held:
            self._pass_on("".join(self._held))
            self._held.clear()
            self._end_if_complete()

    def _pass_on(self, piece: str) -> None:
        if not piece:
            return
        if self._name is None:
            self._held.append(piece)
            return
        if not self.started:
            self.started = True
            self._out.append(ToolCallStart(self.index, self._name))
        self._out.append(ToolCallArguments(self.index, piece))

    def _end_if_complete(self) -> None:
        if self.started and self._arguments is not None and self._arguments.complete:
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._raw.clear()
            self._out.append(ToolCallEnd(self.index))

    def _fail(self) -> None:
        if self.started and not self._ended:
            self._ended = self.failed = True
            self._out.append(ToolCallFailed(self.index, self.raw))

    def _read_literal(self, then: Callable[[str], None]) -> None:
        """Makes the next step read a key or a name, starting with the next character, and pass it to ``then``."""
        self._value = JsonValue()
        self._literal = []
        self._literal_size = 0
        self._then = then
        self._step = self._in_literal

    def _in_literal(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        wrong = _NOT_IN_NAME.search(text, at, end)
        stop = min(wrong.start() if wrong else end, at + _LONGEST_NAME - self._literal_size)
        self._literal.append(text[at:stop])
        self._literal_size += stop - at
        if stop < end or self._value.stopped:
            self.bad = True
        elif self._value.complete:
            self._hand_over("".join(self._literal))
        return stop

    def _hand_over(self, literal: str) -> None:
        try:
            text = str(json.loads(literal))
        except ValueError:
            self.bad = True
        else:
            self._then(text.encode("utf-8", "replace").decode())

    def _expect(self, text: str, at: int, mark: str) -> int:
        if text[at] == mark:
            return at + 1
        self.bad = True
        return at

    @staticmethod
    def _skip_space(text: str, at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at
