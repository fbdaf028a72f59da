"""The contract of reasoning and tool parsers: incremental state machines over text.

One instance serves one choice of one request. The complete answer is the fold of the incremental one, so streaming and
non-streaming can't disagree. A parser must give the same fold for any chunking of the same text, must never raise on
hostile text, must run in linear time, and holds back no more text than could still turn out to be a marker.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's thinking, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call number ``index`` (from 0, in order of appearance) begins. ``id`` is what the dialect wrote, if it writes
    one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of call ``index``'s arguments; concatenated, the pieces are one JSON text, or the beginning of one where
    the call fails."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """Call ``index`` is complete. Every call that starts, ends or fails. ``mismatch`` says how its arguments differ
    from a strict tool's schema; parsers leave it empty."""

    index: int
    mismatch: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallFailed:
    """Call ``index`` turns out to be none: it broke off, or its arguments are not JSON. ``text`` is all of it as the
    model wrote it, and part of the answer's text from here on; what came of the call before doesn't count."""

    index: int
    text: str


Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | ToolCallFailed


@dataclass(frozen=True, slots=True)
class ParserContext:
    """What a parser may know of its request.

    ``prompt_tail`` is the end of the rendered prompt (up to 256 characters): it tells whether the template already
    opened a block of reasoning. ``thinking`` is the request's own switch, ``None`` where it set none. ``tools`` are the
    request's tools as OpenAI function objects (``{"name", "description", "parameters"}``). ``template_options`` are the
    chat template's keyword arguments.
    """

    prompt_tail: str = ""
    thinking: bool | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict)


class ReasoningParser(Protocol):
    """Splits model text into :class:`ReasoningDelta` and :class:`TextDelta`. Text deltas go on to the tool parser, if
    there is one."""

    def __init__(self, context: ParserContext) -> None: ...

    @abstractmethod
    def push(self, text: str) -> Iterable[Event]:
        """Takes the next piece of model text; returns what is now certain."""
        ...

    @abstractmethod
    def finish(self) -> Iterable[Event]:
        """The text has ended: returns what was held back."""
        ...


class ToolParser(Protocol):
    """Splits content text into :class:`TextDelta` and tool-call events."""

    def __init__(self, context: ParserContext) -> None: ...

    @abstractmethod
    def push(self, text: str) -> Iterable[Event]:
        """Takes the next piece of content; returns what is now certain."""
        ...

    @abstractmethod
    def finish(self) -> Iterable[Event]:
        """The text has ended: closes an open call or returns the held-back text."""
        ...
