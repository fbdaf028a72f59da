"""One call whose arguments a model writes one by one: streams them as a JSON object, typed by the tool's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import Event, ToolCallArguments, ToolCallEnd, ToolCallStart
from llmk_parsers.schema_values import Schema, converted, decoded, escaped, written

Review = Callable[[Sequence[tuple[str, Any]], Schema], Mapping[str, Any] | None]
"""Returns the arguments of a call that was written as these pairs, or ``None`` if it is no call."""


class CallStream:
    """Events of call ``index``. String arguments stream as they come, others once they are complete.

    Args:
        index: the call's number.
        tool: the schema of the arguments, of anything if the tool is unknown.
        emit: takes the events.
        review: for dialects that check or rewrite arguments. They are then held back to the end of the call.
        wrappers: names for which ``review`` is needed only if the first argument has one of them, which the tool
            doesn't know. Empty: always.
    """

    def __init__(
        self,
        index: int,
        tool: Schema,
        emit: Callable[[Event], None],
        review: Review | None = None,
        wrappers: frozenset[str] = frozenset(),
    ) -> None:
        self.index = index
        self._tool = tool
        self._emit = emit
        self._review = review
        self._wrappers = wrappers
        self._held: list[tuple[str, Any]] | None = [] if review and not wrappers else None
        self._count = 0
        self._key = ""
        self._schema = tool
        self._literal: bool | None = None
        self._streams = False
        self._pieces: list[str] = []
        self.names: set[str] = set()
        """Of the arguments that are complete."""

    def start(self, name: str, call_id: str | None = None) -> None:
        """The call's name is known."""
        self._emit(ToolCallStart(self.index, name, call_id))

    def start_value(self, key: str, literal: bool | None = None) -> None:
        """The text of argument ``key`` follows. ``literal``: whether it is a string (``False``: it is JSON); ``None``:
        as the schema says."""
        if not self._count and key in self._wrappers and self._tool.names and key not in self._tool.names:
            self._held = []
        self._count += 1
        self._key, self._literal = key, literal
        self._schema = self._tool.member(key)
        self._pieces.clear()
        self._streams = self._held is None and (literal if literal is not None else self._schema.is_string)
        if self._held is None:
            before, quote = "{" if self._count == 1 else ", ", '"' if self._streams else ""
            self._write(f"{before}{written(key)}: {quote}")

    def text(self, piece: str) -> None:
        """The next piece of the argument's text."""
        if not self._streams:
            self._pieces.append(piece)
        elif piece:
            self._write(escaped(piece))

    def end_value(self) -> None:
        """The argument's text is complete."""
        if self._streams:
            self._write('"')
            self.names.add(self._key)
        else:
            text = "".join(self._pieces)
            read = decoded if self._literal is False else converted
            self._put(text if self._literal else read(text, self._schema))

    def value(self, key: str, value: Any) -> None:
        """A whole argument."""
        self.start_value(key, False)
        self._put(value)

    def schema(self, key: str) -> Schema:
        """The schema of argument ``key``."""
        return self._tool.member(key)

    def may_end(self) -> bool:
        """Whether a call that the text ended in after an argument, or without any, has all that it needs."""
        return self._tool.required <= self.names and (bool(self._count) or self._tool.declared)

    def end(self) -> bool:
        """The call is complete. Returns whether it is one."""
        if self._held is not None:
            assert self._review is not None
            arguments = self._review(self._held, self._tool)
            if arguments is None:
                return False
            self._write(written(dict(arguments)))
        else:
            self._write("}" if self._count else "{}")
        self._emit(ToolCallEnd(self.index))
        return True

    def _put(self, value: Any) -> None:
        self.names.add(self._key)
        if self._held is None:
            self._write(written(value))
        else:
            self._held.append((self._key, value))

    def _write(self, text: str) -> None:
        self._emit(ToolCallArguments(self.index, text))
