"""Reasoning between two tags, with or without a switch: the dialect that most reasoning models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.machine import Machine, markers

_CALLS = {
    "<tool_call>": "</tool_call>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
}
"""What encloses tool calls in the dialects that come with think tags."""

_CALL_BEGINS = (
    *(f"<tool_call>{space}{body}" for space in ("", "\n") for body in ('{"', "<function=")),
    "<｜tool▁calls▁begin｜>",
)
"""What can only be a call's beginning: inside reasoning, a mere mention of the tag is not enough."""


class ThinkTags(Machine):
    """Splits text at ``<think>`` and ``</think>``.

    Whether the text begins inside a block is known from the end of the prompt, where the template opened or closed
    one, and otherwise from :meth:`_switch`. Inside a block, everything up to the closing tag is reasoning, and so is
    everything to the end where there is none. A call that begins there ends the block, as models forget the tag.
    Outside, an opening tag counts at the beginning and after a block or a tool call, with at most white space in
    front; elsewhere it is text that speaks of the tag. So is a closing tag behind such a one; any other outside of a
    block is a slip, and dropped. A block of nothing but white space is no reasoning.
    """

    OPEN: ClassVar[str] = "<think>"
    CLOSE: ClassVar[str] = "</think>"

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._in_reasoning = markers(self.OPEN, self.CLOSE, *_CALL_BEGINS)
        self._in_content = markers(self.OPEN, self.CLOSE, *_CALLS)
        self._in_call = markers(*_CALLS.values())
        self._fresh = True
        self._mentioned = 0
        """Opening tags that the content speaks of, and has not closed."""
        self._blank: list[str] = []
        self._state = self._reasoning if self._thinks(context) else self._content

    def _thinks(self, context: ParserContext) -> bool:
        tail = context.prompt_tail.rstrip()
        if tail.endswith((self.OPEN, self.CLOSE)):
            return tail.endswith(self.OPEN)
        return self._switch(context)

    def _switch(self, context: ParserContext) -> bool:
        """Whether thinking is on, where the prompt doesn't tell."""
        return True

    def _reasoning(self) -> bool:
        text, marker = self._read_until(self._in_reasoning)
        self._think(text)
        if marker == self.OPEN:
            if self._fresh:
                self._blank.clear()
            else:
                self._think(marker)
        elif marker == self.CLOSE:
            self._enter(self._content)
        elif marker:
            self._out.append(TextDelta(marker))
            self._enter(self._call)
        return bool(marker)

    def _content(self) -> bool:
        text, marker = self._read_until(self._in_content)
        self._say(text)
        if marker == self.OPEN and self._fresh:
            self._enter(self._reasoning)
        elif marker == self.CLOSE and not self._mentioned:
            pass
        elif marker:
            self._mentioned += {self.OPEN: 1, self.CLOSE: -1}.get(marker, 0)
            self._say(marker)
            if marker in _CALLS:
                self._enter(self._call)
        return bool(marker)

    def _call(self) -> bool:
        text, marker = self._read_until(self._in_call)
        self._say(text + marker)
        if marker:
            self._enter(self._content)
        return bool(marker)

    def _enter(self, state: Callable[[], bool]) -> None:
        self._state = state
        self._fresh = True
        self._blank.clear()

    def _think(self, text: str) -> None:
        if self._fresh and not text.strip():
            self._blank.append(text)
        elif text:
            self._out.append(ReasoningDelta("".join([*self._blank, text])))
            self._blank.clear()
            self._fresh = False

    def _say(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))
            self._fresh = self._fresh and not text.strip()
