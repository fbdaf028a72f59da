"""Think tags with the option ``force_nonempty_content``, for clients that can't use an answer without content."""

from __future__ import annotations

from llmk.api import Event, ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.think_tags import ThinkTags


class ContentNeeded(ThinkTags):
    """Where the option is on, the reasoning of an answer without content becomes its content; so reasoning is held back
    until there is content. Without the option, nothing differs."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._waits = bool(context.template_options.get("force_nonempty_content"))
        self._held: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns what is now certain."""
        return self._checked(super().push(text))

    def finish(self) -> list[Event]:
        """The text has ended: returns what was held back."""
        events = self._checked(super().finish())
        if self._waits:
            events = [TextDelta(event.text) for event in self._held if isinstance(event, ReasoningDelta)]
        return events

    def _checked(self, events: list[Event]) -> list[Event]:
        if not self._waits:
            return events
        self._held += events
        self._waits = not any(isinstance(event, TextDelta) and event.text.strip() for event in events)
        held, self._held = ([], self._held) if self._waits else (self._held, [])
        return held
