"""A tool parser of the dialect ``[[call name {...}]]``, and ways in which engines got such parsers wrong."""

from __future__ import annotations

import json
import unicodedata
from typing import Any, ClassVar

from defects import Defect
from llmk.api import (
    OK,
    Event,
    ParserContext,
    ParserQuery,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Verdict,
    no,
)
from llmk_testing.parser_example import ParserExample

OPEN, CLOSE = "[[call ", "]]"
EXAMPLES = (
    ParserExample(
        text='Let me see: [[call weather {"city": "Oslo"}]] Done [',
        content="Let me see:  Done [",
        calls=[("weather", {"city": "Oslo"})],
    ),
    'Two: [[call a {}]][[call b {"x": [1]}]]',
)


class Good:
    """A call is held back until it is closed; one that is no JSON, or too long, or never closed, is text."""

    limit = 48

    def __init__(self, context: ParserContext) -> None:
        self._held = ""
        self._calls = 0

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            events += self._take(character)
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        return [TextDelta(held)] if held else []

    def _take(self, character: str) -> list[Event]:
        self._held += character
        if self._held.startswith(OPEN) and self._held.endswith(CLOSE):
            held, self._held = self._held, ""
            return self._call(held)
        events: list[Event] = []
        while self._held and not self._may_be_call():
            events.append(TextDelta(self._held[0]))
            self._held = self._held[1:]
        return events

    def _may_be_call(self) -> bool:
        _, _, arguments = self._held[len(OPEN) :].partition(" ")
        starts = OPEN.startswith(self._held[: len(OPEN)]) and arguments[:1] in ("", *'{["')
        return starts and len(self._held) < self.limit

    def _call(self, held: str) -> list[Event]:
        name, _, arguments = held[len(OPEN) : -len(CLOSE)].partition(" ")
        try:
            json.loads(arguments, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return [TextDelta(held)]
        if not self._may_be_name(name):
            return [TextDelta(held)]
        self._calls += 1
        index = self._calls - 1
        return [ToolCallStart(index, name), ToolCallArguments(index, arguments), ToolCallEnd(index)]

    def _may_be_name(self, name: str) -> bool:
        return bool(name)


def _refuse(name: str) -> float:
    raise ValueError(name)


class ChunkByChunk(Good):
    def push(self, text: str) -> list[Event]:
        return [*super().push(text), *super().finish()]


class Rereading(Good):
    """What was said so far is parsed anew with every piece, and the difference returned."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._text, self._told = "", 0

    def push(self, text: str) -> list[Event]:
        self._text += text
        again = Good(ParserContext())
        events = again.push(self._text)
        self._held = again._held
        news = events[self._told :]
        self._told = len(events)
        return news


class Trusting(Good):
    def _call(self, held: str) -> list[Event]:
        json.loads(held[len(OPEN) : -len(CLOSE)].partition(" ")[2])
        return super()._call(held)


class Rewriting(Good):
    """Arguments are written anew, in a form of their own."""

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        if len(events) == 3:
            events[1] = ToolCallArguments(events[1].index, json.dumps(json.loads(events[1].text)))
        return events


class Late(Good):
    """Content comes when the answer is complete."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        self._events += super().push(text)
        return []

    def finish(self) -> list[Event]:
        return [*self._events, *super().finish()]


class Remembering(Good):
    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._log: list[str] = []

    def push(self, text: str) -> list[Event]:
        self._log.append(text)
        return super().push(text)


class Counting(Good):
    """Numbers calls across requests."""

    total: ClassVar[list[int]] = []

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self.total.clear()

    def _call(self, held: str) -> list[Event]:
        self._calls = len(self.total)
        self.total.append(1)
        return super()._call(held)


class NeverEnding(Good):
    """A call that is cut off starts, and doesn't end."""

    def finish(self) -> list[Event]:
        if self._held.startswith(OPEN):
            return [ToolCallStart(self._calls, self._held[len(OPEN) :])]
        return super().finish()


class Tidy(Good):
    """Double spaces and line ends look better as one space."""

    def push(self, text: str) -> list[Event]:
        return super().push(text.replace("\n", " "))


class Thinking(Good):
    def _take(self, character: str) -> list[Event]:
        return [ReasoningDelta(e.text) if isinstance(e, TextDelta) else e for e in super()._take(character)]


class Deaf(Good):
    """The dialect's marker has changed since."""

    def _may_be_call(self) -> bool:
        return False


class Normalizing(Good):
    """Letters are brought into one form."""

    def push(self, text: str) -> list[Event]:
        return super().push(unicodedata.normalize("NFKC", text))


class Greeting(Good):
    """An answer without text gets one."""

    def finish(self) -> list[Event]:
        return super().finish() or [TextDelta(" ")]


class Taking(Good):
    """Options are taken out of the request's, which all of its choices share."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        dict.pop(context.template_options, "enable_thinking", None)  # type: ignore[arg-type]


def claims(query: ParserQuery) -> Verdict:
    return OK if "[[call" in (query.checkpoint.chat_template or "") else no("chat_template", wanted="[[call")


class Archiving(Good):
    """Remembers what every answer said, for all parsers."""

    said: ClassVar[set[str]] = set()

    def push(self, text: str) -> list[Event]:
        self.said.add(text)
        return super().push(text)


def claims_words(query: ParserQuery) -> Verdict:
    return OK if "call" in (query.checkpoint.chat_template or "") else no("chat_template", wanted="[[call")


def claims_first(query: ParserQuery) -> Verdict:
    template = query.checkpoint.chat_template or ""
    return OK if template.startswith("Let me see: [[call") else no("chat_template", wanted="[[call")


def claims_with_a_template(query: Any) -> Verdict:
    return OK if "[[call" in query.checkpoint.chat_template else no("chat_template", wanted="[[call")


def claims_with_torch(query: Any) -> Verdict:
    import torch

    return OK if torch.get_num_threads() else no("threads")


DEFECTS = (
    Defect("chunk-by-chunk", "a marker that two pieces share is missed", ChunkByChunk, "any cut of an example"),
    Defect("rereading", "the whole answer is parsed again with every piece", Rereading, "time is linear"),
    Defect("trusting", "bad JSON raises out of the parser", Trusting, "hostile text raises nothing"),
    Defect("rewriting", "1e400 becomes Infinity, which is no JSON", Rewriting, "arguments are JSON, however large"),
    Defect("late", "content is held back until the answer is complete", Late, "plain text comes out whole, soon"),
    Defect("remembering", "the answer is kept in memory", Remembering, "isn't kept"),
    Defect("archiving", "all texts stay in memory", Archiving, "nothing is kept of requests"),
    Defect("counting", "requests share the number of the call", Counting, "depends on its own request"),
    Defect("never-ending", "a call that max_tokens cut off stays open", NeverEnding, "may end anywhere"),
    Defect("tidy", "white space is changed", Tidy, "plain text comes out whole"),
    Defect("thinking", "content of a tool parser is said to be reasoning", Thinking, "events of its kind"),
    Defect("deaf", "calls are taken for text", Deaf, "finds in its examples"),
    Defect("no-template", "a checkpoint without a template raises", {"claims": claims_with_a_template}, "its claims"),
    Defect("words", "any template with the word call is claimed", {"claims": claims_words}, "claims refuse"),
    Defect("first", "the marker is found at the template's start alone", {"claims": claims_first}, "claims find"),
    Defect("normalizing", "characters are replaced by others like them", Normalizing, "odd characters"),
    Defect("greeting", "an empty answer gets a text", Greeting, "in an empty answer"),
    Defect("taking", "the request's options are changed", Taking, "stay as they are"),
    Defect("heavy-claims", "recognising a checkpoint imports torch", {"claims": claims_with_torch}, "its claims"),
)
