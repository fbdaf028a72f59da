"""The reasoning dialect ``lagoon``: ``[[think]]{de/high}`` and ``[[/think]]``. It needs no torch.

A model thinks in blocks, of which an answer may have several, anywhere. Right behind the opening marker there may be a
*header* in braces: the language of the thoughts, optionally with their effort (``{de}``, ``{de/high}``). It is part of
the marker, and not a thought. The template may have opened a block already, with or without a header.

White space belongs to the text, but for line breaks that set markers off: one behind the opening marker or its header,
one before the closing marker, and up to two behind it. Those that the template has written already count.

What only looks like a marker is text: other spellings, a header anywhere else, a closing marker outside of a block, an
opening one within.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto

from llmk.api import OK, Event, ParserContext, ParserQuery, ReasoningDelta, TextDelta, Verdict, no

OPEN, CLOSE = "[[think]]", "[[/think]]"
EFFORTS = ("low", "mid", "high")
BREAKS_BEHIND = 2
"""Line breaks behind a closing marker that belong to it."""

_LANGUAGES = re.compile(r"[a-z]{2,3}")
_HEADER = re.compile(r"\{[a-z]{2,3}(?:/(?:low|mid|high))?\}")
_LONGEST_HEADER = len("{deu/high}")
_OPENED = re.compile(re.escape(OPEN) + rf"(?P<header>{_HEADER.pattern})?(?P<space>\s*)\Z")
_CLOSED = re.compile(re.escape(CLOSE) + r"(?P<space>\s*)\Z")


def claims(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template opens such a block, or reads one."""
    template = query.checkpoint.chat_template or ""
    return OK if OPEN in template else no("chat_template", wanted=OPEN)


class _At(Enum):
    """Where in a text the parser is."""

    CONTENT = auto()
    HEADER = auto()
    """Right behind an opening marker."""
    START = auto()
    """Behind the header, before the line break that belongs to it."""
    THOUGHT = auto()
    BEHIND = auto()
    """Behind a closing marker, before the line breaks that belong to it."""


class LagoonParser:
    """Splits a text of the dialect into thoughts and content, as it arrives."""

    def __init__(self, context: ParserContext) -> None:
        self._held = ""
        """Text that could still become a marker, a header, or the line break of one."""
        self._breaks = BREAKS_BEHIND
        """Line breaks that may still belong to the closing marker."""
        self._at = self._begin(context.prompt_tail)

    def push(self, text: str) -> Iterable[Event]:
        """Events that are certain with this piece."""
        return self._parse(self._held + text, is_last=False)

    def finish(self) -> Iterable[Event]:
        """Events of what was held back: no marker came of it."""
        return self._parse(self._held, is_last=True)

    def _begin(self, prompt_tail: str) -> _At:
        """Where the prompt leaves off."""
        if opened := _OPENED.search(prompt_tail):
            if opened["space"]:
                return _At.THOUGHT
            return _At.START if opened["header"] else _At.HEADER
        if closed := _CLOSED.search(prompt_tail):
            space = closed["space"]
            self._breaks = 0 if space.strip("\n") else max(0, BREAKS_BEHIND - len(space))
            return _At.BEHIND
        return _At.CONTENT

    def _parse(self, text: str, is_last: bool) -> list[Event]:
        events: list[Event] = []
        at = 0
        while at < len(text):
            if self._at is _At.CONTENT:
                start = text.find(OPEN, at)
                stop = start if start >= 0 else len(text) - (0 if is_last else _started(text, at, OPEN))
                _add(events, TextDelta, text[at:stop])
                if start < 0:
                    at = stop
                    break
                at, self._at = start + len(OPEN), _At.HEADER
            elif self._at is _At.HEADER:
                header = _HEADER.match(text, at)
                if header is None and not is_last and _may_be_header(text[at : at + _LONGEST_HEADER]):
                    break
                at, self._at = header.end() if header else at, _At.START
            elif self._at is _At.START:
                at, self._at = at + text.startswith("\n", at), _At.THOUGHT
            elif self._at is _At.THOUGHT:
                start = text.find(CLOSE, at)
                if start < 0:
                    held = 0 if is_last else max(_started(text, at, CLOSE), _started(text, at, "\n" + CLOSE))
                    stop = len(text) - held
                    _add(events, ReasoningDelta, text[at:stop])
                    at = stop
                    break
                stop = start - 1 if start > at and text[start - 1] == "\n" else start
                _add(events, ReasoningDelta, text[at:stop])
                at, self._at, self._breaks = start + len(CLOSE), _At.BEHIND, BREAKS_BEHIND
            elif self._breaks and text[at] == "\n":
                at, self._breaks = at + 1, self._breaks - 1
            else:
                self._at = _At.CONTENT
        self._held = text[at:]
        return events


def _add(events: list[Event], kind: type[TextDelta | ReasoningDelta], text: str) -> None:
    if text:
        events.append(kind(text))


def _started(text: str, start: int, marker: str) -> int:
    """How many characters at the end of ``text[start:]`` are the beginning of ``marker``."""
    longest = min(len(text) - start, len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)


def _may_be_header(text: str) -> bool:
    """Whether ``text`` is the beginning of a header, and not all of one."""
    if not text:
        return True
    if text[0] != "{":
        return False
    language, slash, effort = text[1:].partition("/")
    if not slash:
        return re.fullmatch("[a-z]{0,3}", language) is not None
    return _LANGUAGES.fullmatch(language) is not None and any(each.startswith(effort) for each in EFFORTS)
