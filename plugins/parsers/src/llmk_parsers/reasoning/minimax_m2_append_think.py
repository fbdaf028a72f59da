"""No reasoning of MiniMax M2: all is content, with the opening tag that the template has written before it."""

from __future__ import annotations

from llmk.api import Event, ParserContext, TextDelta


class MiniMaxM2AppendThink:
    """For clients that read think tags themselves, as the model's makers recommend."""

    def __init__(self, context: ParserContext) -> None:
        self._started = False

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns it as content."""
        if not text:
            return []
        opening = "" if self._started else "<think>"
        self._started = True
        return [TextDelta(opening + text)]

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []
