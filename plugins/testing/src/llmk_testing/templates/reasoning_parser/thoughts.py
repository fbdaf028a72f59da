"""The dialect ``[[think]]reasoning[[/think]]content``, as an incremental state machine."""

from __future__ import annotations

from llmk.api import Event, ParserContext, ReasoningDelta, TextDelta

OPEN, CLOSE = "[[think]]", "[[/think]]"


class Thoughts:
    """Follows ``llmk.api.ReasoningParser``. Text is passed on at once, except a tail that may become a marker."""

    def __init__(self, context: ParserContext) -> None:
        self._thinking = context.prompt_tail.rstrip().endswith(OPEN)
        self._held = ""

    def push(self, text: str) -> list[Event]:
        """Takes the next chunk of text; returns the events that are now certain."""
        text, at = self._held + text, 0
        events: list[Event] = []
        while (end := text.find(self._marker, at)) >= 0:
            events += self._events(text[at:end])
            at = end + len(self._marker)
            self._thinking = not self._thinking
        rest = text[at:]
        sizes = range(min(len(rest), len(self._marker) - 1), 0, -1)
        kept = next((size for size in sizes if rest.endswith(self._marker[:size])), 0)
        self._held = rest[len(rest) - kept :]
        return events + self._events(rest[: len(rest) - kept])

    def finish(self) -> list[Event]:
        """At the end of the text: what was held back is not a marker."""
        held, self._held = self._held, ""
        return self._events(held)

    @property
    def _marker(self) -> str:
        return CLOSE if self._thinking else OPEN

    def _events(self, text: str) -> list[Event]:
        if not text:
            return []
        return [ReasoningDelta(text) if self._thinking else TextDelta(text)]
