"""Reasoning between two tags: the dialect of most reasoning models."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.machine import Machine, markers

_CALLS = (("<tool_call>", "</tool_call>"), ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"))
_CALL_STARTS = (
    *(f"<tool_call>{space}{body}" for space in ("", "\n") for body in ('{"', "<function=")),
    "<｜tool▁calls▁begin｜>",
)


class ThinkTags(Machine):
    """Splits text at ``<think>`` and ``</think>``.

    The end of the prompt shows whether the text starts inside a block, if the template opened or closed one; otherwise
    :meth:`_switch` decides. Inside a block, everything up to the closing tag, or to the end of the text, is reasoning.
    A tool call inside a block ends it, because models forget the closing tag. Outside, an opening tag counts only at
    the start of the text and after a block or a tool call, with only white space before it; elsewhere it is text that
    mentions the tag. A closing tag after such a mention is text too; any other closing tag outside of a block is a
    model's mistake, and dropped. A block of only white space is not reasoning.
    """

    OPEN: ClassVar[tuple[str, ...]] = ("<think>",)
    CLOSE: ClassVar[tuple[str, ...]] = ("</think>",)
    SWITCHES: ClassVar[tuple[str, ...]] = ()
    """The template's options that turn reasoning on and off. If there are none, the request can't."""
    THINKS: ClassVar[bool] = True
    """Whether text starts inside a block if neither the prompt nor the request shows it."""
    ANYWHERE: ClassVar[bool] = False
    """Whether an opening tag counts wherever it is, as it is a special token that text does not mention."""
    TRIM: ClassVar[bool] = False
    """Whether a line break before the closing tag belongs to the tag."""
    STRIP: ClassVar[bool] = False
    """Whether white space at the end of a block is dropped, if a tag or a call ends it rather than the text's end."""
    LEAD: ClassVar[str] = ""
    """Characters that are dropped from the start of the content after a block."""
    CALLS: ClassVar[tuple[tuple[str, str], ...]] = _CALLS
    """The tags of tool calls, of which all is content."""
    CALL_STARTS: ClassVar[tuple[str, ...]] = _CALL_STARTS
    """The unambiguous start of a call: inside reasoning, a mention of the tag alone does not count."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._in_reasoning = markers(*self.OPEN, *self.CLOSE, *self.CALL_STARTS)
        self._calls = tuple(start for start, _ in self.CALLS)
        self._in_content = markers(*self.OPEN, *self.CLOSE, *self._calls)
        self._in_call = markers(*(end for _, end in self.CALLS)) if self.CALLS else None
        self._fresh = True
        self._mentioned = 0
        """Number of opening tags that the content mentions and has not closed."""
        self._blank: list[str] = []
        self._leads = False
        self._break = ""
        """The line break at the end of the reasoning so far, if it may belong to the closing tag."""
        self._state = self._reasoning if self._thinks(context) else self._content

    def _thinks(self, context: ParserContext) -> bool:
        tail = context.prompt_tail.rstrip()
        opened = tail.endswith(tuple(tag.rstrip() for tag in self.OPEN))
        if opened or tail.endswith(self.CLOSE):
            return opened
        return self._switch(context)

    def _switch(self, context: ParserContext) -> bool:
        """Whether reasoning is on, if the prompt does not show it."""
        if self.SWITCHES and context.thinking is not None:
            return context.thinking
        given = (bool(context.template_options[name]) for name in self.SWITCHES if name in context.template_options)
        return next(given, self.THINKS)

    def _reasoning(self) -> bool:
        text, marker = self._read_until(self._in_reasoning)
        self._think(text)
        if marker in self.OPEN:
            if self._fresh:
                self._blank.clear()
            else:
                self._think(marker)
        elif marker in self.CLOSE:
            self._break = ""
            self._leads = bool(self.LEAD)
            self._enter(self._content)
        elif marker:
            self._end_thought()
            self._out.append(TextDelta(marker))
            self._enter(self._call)
        elif self._ended:
            self._end_thought()
            if not self._fresh and (rest := "".join(self._blank)):
                self._out.append(ReasoningDelta(rest))
                self._blank.clear()
        return bool(marker)

    def _content(self) -> bool:
        text, marker = self._read_until(self._in_content)
        self._say(text)
        if marker in self.OPEN and (self._fresh or self.ANYWHERE):
            self._enter(self._reasoning)
        elif marker in self.CLOSE and not self._mentioned:
            pass
        elif marker:
            self._mentioned += (marker in self.OPEN) - (marker in self.CLOSE)
            self._say(marker)
            if marker in self._calls:
                self._enter(self._call)
        return bool(marker)

    def _call(self) -> bool:
        if self._in_call is None:
            self._enter(self._content)
            return True
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
        if self.TRIM:
            text = self._break + text
            self._break = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        body = text.rstrip()
        if (self._fresh or self.STRIP) and not body:
            self._blank.append(text)
        elif text:
            body = body if self.STRIP else text
            self._out.append(ReasoningDelta("".join([*self._blank, body])))
            self._blank = [text[len(body) :]]
            self._fresh = False

    def _end_thought(self) -> None:
        """The block ended without a closing tag."""
        if self._break and not self._fresh:
            self._out.append(ReasoningDelta(self._break))
        self._break = ""

    def _say(self, text: str) -> None:
        if self._leads:
            text = text.lstrip(self.LEAD)
            self._leads = not text
        if text:
            self._out.append(TextDelta(text))
            self._fresh = self._fresh and not text.strip()
