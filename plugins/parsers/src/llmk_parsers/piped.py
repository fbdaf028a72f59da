"""A tool parser of two machines in a row, where calls stand in an envelope of the message."""

from __future__ import annotations

from llmk.api import Event, TextDelta
from llmk_parsers.machine import Machine


class Piped:
    """Passes the text that ``envelope`` returns on to ``calls``. Its other events, which are reasoning that no
    reasoning parser has read before, are dropped."""

    def __init__(self, envelope: Machine, calls: Machine) -> None:
        self._envelope = envelope
        self._calls = calls

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns what is now certain."""
        return self._read(self._envelope.push(text))

    def finish(self) -> list[Event]:
        """The text has ended: returns what was held back."""
        return [*self._read(self._envelope.finish()), *self._calls.finish()]

    def _read(self, events: list[Event]) -> list[Event]:
        texts = [event.text for event in events if isinstance(event, TextDelta)]
        return [event for text in texts for event in self._calls.push(text)]
