"""The dialect *logbook*: thoughts are entries of a log, which may be numbered and titled.

A block opens with a header and closes with ``<</log>>``::

    <<log>>
    The user wants the tide at noon.
    <</log>>
    High water is at 12:40.

Headers are ``<<log>>``, ``<<log 3>>``, ``<<log: Title>>`` and ``<<log 3: Title>>``. A number has at most four digits, a
title at most forty characters, on one line and without angle brackets. Inside of a block, a *numbered* header starts
the next entry; one without a number is text there, since models quote it. A closing marker outside of a block is text.

What is the model's own stays: a title is the first text of its entry, with the line break behind its header. Three line
breaks belong to markers, and go with them: the one behind a header without a title, the one before ``<</log>>``, and
the one behind it. All other white space is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmk.api import OK, ParserContext, ParserQuery, ReasoningDelta, TextDelta, Verdict, no

OPEN, CLOSE = "<<log>>", "<</log>>"

_NUMBER = r" [0-9]{1,4}"
_TITLE = r"[^\s<>][^<>\r\n]{0,39}"
_HEADER = rf"<<log(?:{_NUMBER})?(?:: (?P<title>{_TITLE}))?>>"
_NUMBERED = rf"<<log{_NUMBER}(?:: (?P<title>{_TITLE}))?>>"

_OUTSIDE = re.compile(_HEADER)
_INSIDE = re.compile(rf"\n?{CLOSE}|{_NUMBERED}")
_OPENED = re.compile(rf"{_HEADER}\Z")
_LONGEST = len("<<log 9999: >>") + 40
"""Characters of the longest header."""

# What may follow "<<log" in a header that is not complete; inside of a block a number comes first.
_BEGUN_OUTSIDE = re.compile(rf">|(?: [0-9]{{0,4}}|{_NUMBER}>)?|(?:{_NUMBER})?:(?: (?:{_TITLE}>?)?)?")
_BEGUN_INSIDE = re.compile(rf"(?: [0-9]{{0,4}}|{_NUMBER}>)?|{_NUMBER}:(?: (?:{_TITLE}>?)?)?")


def claims(query: ParserQuery) -> Verdict:
    """Checkpoints whose template writes a marker of the dialect: to open a block, or to cut old ones out."""
    template = query.checkpoint.chat_template or ""
    return OK if OPEN in template or CLOSE in template else no("chat_template", wanted=f"{OPEN} or {CLOSE}")


class LogbookParser:
    """Splits a text into the entries of its log and the answer. What is held back is shorter than a header, but for a
    line break before it."""

    def __init__(self, context: ParserContext) -> None:
        tail = context.prompt_tail
        shown = tail.rstrip()
        header = _OPENED.search(shown, max(0, len(shown) - _LONGEST))
        self._inside = header is not None
        # The line of a header that ends the prompt may still have to end.
        self._drops_break = header is not None and not header["title"] and "\n" not in tail[len(shown) :]
        self._held = ""

    def push(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """The events of the next piece."""
        return list(self._split(self._held + text, final=False)) if text else []

    def finish(self) -> list[TextDelta | ReasoningDelta]:
        """What was held back: it became no marker. An open block ends with the text."""
        return list(self._split(self._held, final=True))

    def _split(self, text: str, *, final: bool) -> Iterator[TextDelta | ReasoningDelta]:
        at = 0
        while at < len(text):
            if self._drops_break:
                self._drops_break = False
                at += text.startswith("\n", at)
            marker = (_INSIDE if self._inside else _OUTSIDE).search(text, at)
            if marker is None:
                break
            yield from self._delta(text[at : marker.start()])
            title = marker["title"]
            self._inside = not marker[0].endswith(CLOSE)
            self._drops_break = not title
            yield from self._delta(title or "")
            at = marker.end()
        stop = len(text) if final else max(at, self._certain(text, at))
        yield from self._delta(text[at:stop])
        self._held = text[stop:]

    def _delta(self, text: str) -> Iterator[TextDelta | ReasoningDelta]:
        if text:
            yield ReasoningDelta(text) if self._inside else TextDelta(text)

    def _certain(self, text: str, at: int) -> int:
        """Where the end of ``text`` starts that may become a marker with what comes next."""
        start = text.rfind("<<", max(at, len(text) - _LONGEST))
        if start < 0 or not self._may_become_marker(text[start:]):
            start = len(text) - text.endswith("<")
        if self._inside and start > at and text[start - 1] == "\n":
            start -= 1
        return start

    def _may_become_marker(self, begun: str) -> bool:
        if "<<log".startswith(begun) or (self._inside and CLOSE.startswith(begun)):
            return True
        pattern = _BEGUN_INSIDE if self._inside else _BEGUN_OUTSIDE
        return begun.startswith("<<log") and pattern.fullmatch(begun, len("<<log")) is not None
