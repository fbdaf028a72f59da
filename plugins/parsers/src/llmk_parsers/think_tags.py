"""Reasoning between two tags: the dialect of most reasoning models."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.machine import Machine, markers

_CALLS = {
    "<tool_call>": "</tool_call>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
}
"""The tags of tool calls in dialects with think tags."""

_CALL_STARTS = (
    *(f"<tool_call>{space}{body}" for space in ("", "\n") for body in ('{"', "<function=")),
    "<｜tool▁calls▁begin｜>",
)
"""The unambiguous start of a call: inside reasoning, a mention of the tag alone does not count."""


class ThinkTags(Machine):
    """Splits text at ``<think>`` and ``</think>``.

    The end of the prompt shows whether the text starts inside a block, if the template opened or closed one; otherwise
    :meth:`_switch` decides. Inside a block, everything up to the closing tag, or to the end of the text, is reasoning.
    A tool call inside a block ends it, because models forget the closing tag. Outside, an opening tag counts only at
    the start of the text and after a block or a tool call, with only white space before it; elsewhere it is text that
    mentions the tag. A closing tag after such a mention is text too; any other closing tag outside of a block is a
    model's mistake, and dropped. A block of only white space is not reasoning.
    """

    OPEN: ClassVar[str] = "<think>"
    CLOSE: ClassVar[str] = "</think>"

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._in_reasoning = markers(self.OPEN, self.CLOSE, *_CALL_STARTS)
        self._in_content = markers(self.OPEN, self.CLOSE, *_CALLS)
        self._in_call = markers(*_CALLS.values())
        self._fresh = True
        self._mentioned = 0
        """Number of opening tags that the content mentions and has not closed."""
        self._blank: list[str] = []
        self._state = self._reasoning if self._thinks(context) else self._content

    def _thinks(self, context: ParserContext) -> bool:
        tail = context.prompt_tail.rstrip()
        if tail.endswith((self.OPEN, self.CLOSE)):
            return tail.endswith(self.OPEN)
        return self._switch(context)

    def _switch(self, context: ParserContext) -> bool:
        """Whether reasoning is on, if the prompt does not show it."""
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
