"""Text in sections, of which special tokens say what each is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.machine import Machine, markers

Kind = Literal["reasoning", "content", "call"]


class Sections(Machine):
    """Splits text at the markers of :attr:`SECTIONS`, each of which says what the text behind it is. Before the first
    one, the end of the prompt says so, or it is content. A call stays as it is, with both of its markers, for the tool
    parser; other markers are dropped."""

    SECTIONS: ClassVar[Mapping[str, Kind]] = {}

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._markers = markers(*self.SECTIONS)
        tail = context.prompt_tail.rstrip()
        opened = (kind for marker, kind in self.SECTIONS.items() if tail.endswith(marker))
        self._kind: Kind = next(opened, "content")
        self._state = self._section

    def _section(self) -> bool:
        text, marker = self._read_until(self._markers)
        if text:
            self._out.append(ReasoningDelta(text) if self._kind == "reasoning" else TextDelta(text))
        if marker:
            kind = self.SECTIONS[marker]
            if "call" in (self._kind, kind):
                self._out.append(TextDelta(marker))
            self._kind = kind
        return bool(marker)
