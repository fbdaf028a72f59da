"""Arguments of a call between markers, as JSON: events while they are read."""

from __future__ import annotations

from llmk.api import Event, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk_parsers.call_object import CallArguments


class ArgumentStream:
    """The events of call ``index``, whose arguments arrive piece by piece. If they are not JSON, or are cut off, the
    call fails, and its text is ``opening`` and all pieces."""

    def __init__(self, index: int, name: str, opening: str) -> None:
        self.index = index
        self.failed = False
        self._name = name
        self._raw = [opening]
        self._value = CallArguments()
        self._started = False

    def start(self) -> Event:
        """The call starts."""
        return ToolCallStart(self.index, self._name)

    def feed(self, text: str) -> list[Event]:
        """The next piece. White space around the arguments is dropped."""
        self._raw.append(text)
        at = 0 if self._started else len(text) - len(text.lstrip())
        if at == len(text):
            return []
        self._started = True
        piece = ""
        if not self._value.complete:
            at, piece = self._value.feed(text, at)
        events: list[Event] = [ToolCallArguments(self.index, piece)] if piece else []
        if self._value.stopped or text[at:].strip():
            events = [self._fail()]
        return events

    def end(self, marker: str) -> list[Event]:
        """The arguments have ended, with ``marker`` (``""``: the text has): the call is complete, or fails."""
        if marker and not self._started:
            return [ToolCallArguments(self.index, "{}"), ToolCallEnd(self.index)]
        self._raw.append(marker)
        return [ToolCallEnd(self.index) if self._value.complete else self._fail()]

    def _fail(self) -> Event:
        self.failed = True
        return ToolCallFailed(self.index, "".join(self._raw))
