"""Text in sections, of which special tokens say what each is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.machine import Machine, markers

Kind = Literal["reasoning", "content", "call", "header"]

_NAME = re.compile(r"[\w.:/-]{0,64}")


class Sections(Machine):
    """Splits text at the markers of :attr:`SECTIONS`, each of which says what the text behind it is. Before the first
    one, the end of the prompt says so, or it is :attr:`FIRST`. A call stays as it is, with both of its markers, for the
    tool parser; other markers are dropped, and so is a header, which is a name before another marker that is not one of
    :attr:`ENDS`; other text is no header but content."""

    SECTIONS: ClassVar[Mapping[str, Kind]] = {}
    FIRST: ClassVar[Kind] = "content"
    ENDS: ClassVar[tuple[str, ...]] = ()
    STRIP: ClassVar[bool] = False
    """Whether white space at the end of reasoning is dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._markers = markers(*self.SECTIONS)
        tail = context.prompt_tail.rstrip()
        opened = (kind for marker, kind in self.SECTIONS.items() if tail.endswith(marker))
        self._kind: Kind = next(opened, self._first(context))
        self._header = ""
        self._blank: list[str] = []
        self._state = self._section

    def _first(self, context: ParserContext) -> Kind:
        """What text is if the end of the prompt doesn't say so."""
        return self.FIRST

    def _section(self) -> bool:
        text, marker = self._read_until(self._markers)
        if self._kind == "header":
            text = self._headless(text, marker)
        if text:
            self._say(text)
        if marker:
            self._blank.clear()
            kind = self.SECTIONS[marker]
            if "call" in (self._kind, kind):
                self._out.append(TextDelta(marker))
            self._kind = kind
        return bool(marker)

    def _say(self, text: str) -> None:
        if self._kind != "reasoning":
            self._out.append(TextDelta(text))
            return
        body = text.rstrip() if self.STRIP else text
        if body:
            self._out.append(ReasoningDelta("".join([*self._blank, body])))
            self._blank.clear()
        self._blank.append(text[len(body) :])

    def _headless(self, text: str, marker: str) -> str:
        """What of a header's text turns out to be content."""
        text = self._header + text
        self._header = ""
        if marker and marker not in self.ENDS and _NAME.fullmatch(text):
            return ""
        if not marker and not self._ended and _NAME.fullmatch(text):
            self._header = text
            return ""
        if text:
            self._kind = "content"
        return text
