"""What readers of one tool call share: its events, and its text in case it fails."""

from __future__ import annotations

from collections.abc import Callable

from llmk.api import Event, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart

LONGEST_NAME = 256
Step = Callable[[str, int], int]


class CallReader:
    """Reads the call that starts at the first character fed; :meth:`take` returns the resulting events.

    The call starts as soon as its name and the start of its arguments are known. Its arguments are streamed as long as
    they are the prefix of valid JSON; the call ends with them. Input that can't be such a call sets ``bad``. If that
    happens before the end of the arguments, or the arguments are truncated, ``raw`` is the text read so far; a call
    that has started then fails with it.

    A subclass sets ``_step`` to a method that reads from a position of the text, and returns the next position; it sets
    ``_waits`` if it needs more text, unless the text is ``final``.
    """

    _step: Step

    def __init__(self, index: int) -> None:
        self.index = index
        self.started = self.done = self.bad = self.failed = self.final = False
        self._out: list[Event] = []
        self._raw: list[str] = []
        self._name: str | None = None
        self._id: str | None = None
        self._held: list[str] = []
        """Arguments that were read before the name."""
        self._waits = False
        self._ended = False

    @property
    def raw(self) -> str:
        """The text read so far, if the call has not ended."""
        return "".join(self._raw)

    def feed(self, text: str, at: int) -> int:
        """Reads ``text`` from ``at`` on; returns the position after the call, of the invalid character, of what may
        only be read with the text that follows, or the end."""
        start = at
        self._waits = False
        while at < len(text) and not (self.done or self.bad or self._waits):
            at = self._step(text, at)
        if not self._ended:
            self._raw.append(text[start:at])
            if self.bad:
                self._fail()
        return at

    def finish(self) -> None:
        """The text has ended inside the call."""
        self.bad = not self.done
        self._fail()

    def take(self) -> list[Event]:
        """The events since the last time."""
        events, self._out = self._out, []
        return events

    def _pass_on(self, piece: str) -> None:
        """Adds to the arguments."""
        if not piece:
            return
        if self._name is None:
            self._held.append(piece)
            return
        if not self.started:
            self.started = True
            self._out.append(ToolCallStart(self.index, self._name, self._id))
        self._out.append(ToolCallArguments(self.index, piece))

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._raw.clear()
            self._out.append(ToolCallEnd(self.index))

    def _fail(self) -> None:
        if self.started and not self._ended:
            self._ended = self.failed = True
            self._out.append(ToolCallFailed(self.index, self.raw))

    def _expect(self, text: str, at: int, mark: str) -> int:
        if text[at] == mark:
            return at + 1
        self.bad = True
        return at
