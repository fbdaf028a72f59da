"""Messages with headers, which say who receives them: the harmony format of gpt-oss, and that of Muse."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar, Literal

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.machine import Machine, markers

Kind = Literal["reasoning", "content", "call", "hidden"]

_LONGEST_HEADER = 256
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def recipient_of(header: str) -> str:
    """The recipient that a header names (``to=functions.find``); empty if it names none."""
    found = _RECIPIENT.search(header)
    return found.group(1) if found else ""


class Channels(Machine):
    """Reads ``header<|message|>body`` and one of :attr:`ENDS`, again and again.

    The prompt ends inside a header or a body, or before both. Text that does not look like a header is content; so is
    one that is too long. A header that is cut off is dropped. A subclass says with :meth:`_kind_of` what a message is,
    and with :meth:`_open`, :meth:`_piece` and :meth:`_end` what becomes of it.
    """

    MESSAGE: ClassVar[str] = "<|message|>"
    START: ClassVar[str] = "<|start|>"
    ENDS: ClassVar[tuple[str, ...]] = ()
    MARKS: ClassVar[tuple[str, ...]] = ("<|start|>",)
    """The tokens with which a header may start, even inside of a body that was not ended."""
    HEADERS: ClassVar[tuple[str, ...]] = ()
    """Other texts with which a header starts, before or after a message."""

    def _set_up(self) -> None:
        self._in_body = markers(*self.ENDS, *self.MARKS)
        self._in_header = markers(self.MESSAGE)
        self._header: list[str] = []
        self._header_size = 0
        self._state = self._between

    def _enter(self, context: ParserContext) -> None:
        """Starts where the end of the prompt says."""
        before, _, header = context.prompt_tail.rpartition(self.START)
        if before and header.rstrip().endswith(self.MESSAGE):
            self._open(header.rstrip().removesuffix(self.MESSAGE), "")
            self._state = self._body

    @abstractmethod
    def _kind_of(self, header: str) -> Kind:
        """What a message with this header is."""
        ...

    @abstractmethod
    def _open(self, header: str, marker: str) -> None:
        """A message starts. ``header`` and ``marker`` are its text so far; both are empty if it has no header."""
        ...

    @abstractmethod
    def _piece(self, text: str) -> None:
        """The next piece of the message's body."""
        ...

    @abstractmethod
    def _end(self, marker: str) -> None:
        """The message ended, by ``marker`` if that is not empty."""
        ...

    def _between(self) -> bool:
        starts = (*self.MARKS, *self.HEADERS, self.MESSAGE)
        longest = max(map(len, starts))
        text = self._text[self._at : self._at + longest]
        if not text or (not self._ended and any(start.startswith(text) for start in starts if start != text)):
            return False
        if text.startswith(starts):
            self._state = self._read_header
        else:
            self._open("", "")
            self._state = self._body
        return True

    def _read_header(self) -> bool:
        left = _LONGEST_HEADER - self._header_size
        window = self._text[self._at : self._at + left + len(self.MESSAGE)]
        found = self._in_header.search(window, 0)
        end = found.start() if found else len(window) if self._ended else self._in_header.hold_from(window, 0)
        taken = min(end, left)
        self._header.append(window[:taken])
        self._header_size += taken
        self._at += taken
        if not found and end <= left:
            return False
        header, self._header, self._header_size = "".join(self._header), [], 0
        if found:
            self._at += len(self.MESSAGE)
            self._open(header, self.MESSAGE)
        else:
            self._open("", "")
            self._piece(header)
        self._state = self._body
        return True

    def _body(self) -> bool:
        text, marker = self._read_until(self._in_body)
        if text:
            self._piece(text)
        if marker in self.ENDS:
            self._end(marker)
            self._state = self._between
        elif marker:
            self._end("")
            self._at -= len(marker)
            self._state = self._read_header
        return bool(marker)


class ChannelReasoning(Channels):
    """Splits messages into reasoning and content. Messages that call tools stay as they are, with their headers, for
    the tool parser; a header that the prompt has started is completed."""

    JOINT: ClassVar[str] = "\n"
    """What separates messages of a kind."""
    CALL_LEAD: ClassVar[str] = ""
    """Text before a call's header."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._set_up()
        self._kind: Kind = "content"
        self._joint = ""
        self._seen: set[str] = set()
        self._enter(context)

    def _open(self, header: str, marker: str) -> None:
        self._kind = self._kind_of(header) if header or marker else "content"
        self._joint = self.JOINT if self._kind in self._seen and marker else ""
        if self._kind == "call":
            opening = "" if self.START in header else f"{self.START}assistant"
            self._out.append(TextDelta(f"{self.CALL_LEAD}{opening}{header}{marker}"))

    def _piece(self, text: str) -> None:
        if self._kind == "hidden":
            return
        if self._kind != "call":
            self._seen.add(self._kind)
        text, self._joint = self._joint + text, ""
        self._out.append(ReasoningDelta(text) if self._kind == "reasoning" else TextDelta(text))

    def _end(self, marker: str) -> None:
        if self._kind == "call" and marker:
            self._out.append(TextDelta(marker))
