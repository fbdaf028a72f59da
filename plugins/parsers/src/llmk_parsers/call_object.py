"""One tool call written as a JSON object, ``{"name": ..., "arguments": {...}}``: the shape of most JSON dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from llmk_parsers.call_reader import LONGEST_NAME, CallReader
from llmk_parsers.json_value import JsonValue, StringDecoder

_ARGUMENTS = ("arguments", "parameters")
_SPACE = re.compile(r"\s*")
_NOT_IN_NAME = re.compile(r"[<\x00-\x1f]")


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


class CallObject(CallReader):
    """Reads a call that is an object.

    Args:
        index: the call's number.
        names: the keys of a name.
        arguments: the keys of arguments.
        strict: for dialects without markers, where any object may be the answer itself: keys other than a call's, and a
            call without arguments, are ``bad``.
    """

    _key: str
    """Of the member that is read."""
    _value: JsonValue
    """Of a name, a key or another member, as far as it is read."""
    _literal: list[str]
    """The pieces of a name or a key."""
    _literal_size: int
    _then: Callable[[str], None]
    """What takes the name or the key."""

    def __init__(
        self,
        index: int,
        *,
        names: Collection[str] = ("name",),
        arguments: Collection[str] = _ARGUMENTS,
        strict: bool = False,
    ) -> None:
        super().__init__(index)
        self._names = names
        self._argument_keys = arguments
        self._strict = strict
        self._step = self._start
        self._arguments: CallArguments | None = None

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
        self.bad = self._strict and literal not in (*self._names, *self._argument_keys, "type", "id")
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
        if self._key in self._names and self._name is None:
            self._read_literal(self._after_name)
            self.bad = text[at] != '"'
        elif self._key in self._argument_keys and self._arguments is None:
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
        if self.started:
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

    def finish(self) -> None:
        """The text has ended inside the object: it is cut off, even if its arguments are complete."""
        self.bad = not self.done
        super()._fail()

    def _fail(self) -> None:
        """What is invalid behind a name and complete arguments, such as a missing bracket, is forgiven."""
        if self.started and self._arguments is not None and self._arguments.complete:
            self._end()
        super()._fail()

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
        stop = min(wrong.start() if wrong else end, at + LONGEST_NAME - self._literal_size)
        self._literal.append(text[at:stop])
        self._literal_size += stop - at
        if stop < end or self._value.stopped:
            self.bad = True
        elif self._value.complete:
            self._hand_over("".join(self._literal))
        return stop

    def _hand_over(self, literal: str) -> None:
        self._then(str(json.loads(literal)).encode("utf-8", "replace").decode())

    @staticmethod
    def _skip_space(text: str, at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at
