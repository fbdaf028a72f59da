"""Thoughts between ``<ring>`` and ``</ring>``, in any number of blocks, of which the prompt may open the first. A line
break behind a block belongs to it."""

from __future__ import annotations

from llmk.api import Event, ParserContext, ReasoningDelta, TextDelta
from llmk_orchard.pieces import in_short_pieces

OPEN, CLOSE = "<ring>", "</ring>"


class Rings:
    """Inside of a block or not, and what may be the start of its other end."""

    def __init__(self, context: ParserContext) -> None:
        tail = context.prompt_tail.rstrip()
        self._inside = tail.endswith(OPEN)
        self._held = ""
        self._behind = False

    @in_short_pieces
    def push(self, text: str) -> list[Event]:
        """Everything but what may be the start of a marker."""
        text, events = self._held + text, []
        while True:
            wanted = CLOSE if self._inside else OPEN
            before, found, text = text.partition(wanted)
            if not found:
                break
            events += self._said(before)
            self._behind = self._inside
            self._inside = not self._inside
        keep = next(size for size in range(len(wanted) - 1, -1, -1) if before.endswith(wanted[:size]))
        self._held = before[len(before) - keep :]
        return events + self._said(before[: len(before) - keep])

    def finish(self) -> list[Event]:
        """What was held is no marker."""
        held, self._held = self._held, ""
        return self._said(held)

    def _said(self, text: str) -> list[Event]:
        if self._behind and text:
            self._behind = False
            text = text.removeprefix("\n")
        if not text:
            return []
        return [ReasoningDelta(text) if self._inside else TextDelta(text)]
