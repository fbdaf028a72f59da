"""The dialect ``[[call name {"argument": 1}]]``, as an incremental state machine."""

from __future__ import annotations

import json

from llmk.api import Event, ParserContext, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

OPEN, CLOSE = "[[call ", "]]"


class Brackets:
    """Follows ``llmk.api.ToolParser``. Text is passed on at once, except a tail that may become a marker; a call is
    passed on when it is complete. A malformed or incomplete call is text."""

    def __init__(self, context: ParserContext) -> None:
        self._call: list[str] | None = None
        """Chunks of the open call."""
        self._held = ""
        self._count = 0

    def push(self, text: str) -> list[Event]:
        """Takes the next chunk of content; returns the events that are now certain."""
        text, at = self._held + text, 0
        events: list[Event] = []
        while (end := text.find(self._marker, at)) >= 0:
            before, at = text[at:end], end + len(self._marker)
            if self._call is None:
                events += _text(before)
                self._call = []
            else:
                events += self._ended("".join([*self._call, before]))
                self._call = None
        rest = text[at:]
        sizes = range(min(len(rest), len(self._marker) - 1), 0, -1)
        kept = next((size for size in sizes if rest.endswith(self._marker[:size])), 0)
        certain, self._held = rest[: len(rest) - kept], rest[len(rest) - kept :]
        if self._call is None:
            return events + _text(certain)
        self._call.append(certain)
        return events

    def finish(self) -> list[Event]:
        """At the end of the text: what was held back is text."""
        held, self._held = self._held, ""
        unended, self._call = self._call, None
        return _text(held if unended is None else "".join([OPEN, *unended, held]))

    @property
    def _marker(self) -> str:
        return OPEN if self._call is None else CLOSE

    def _ended(self, body: str) -> list[Event]:
        name, _, arguments = body.partition(" ")
        try:
            valid = name.isidentifier() and isinstance(json.loads(arguments), dict)
        except (ValueError, RecursionError):
            valid = False
        if not valid:
            return _text(f"{OPEN}{body}{CLOSE}")
        index, self._count = self._count, self._count + 1
        return [ToolCallStart(index, name), ToolCallArguments(index, arguments), ToolCallEnd(index)]


def _text(text: str) -> list[Event]:
    return [TextDelta(text)] if text else []
