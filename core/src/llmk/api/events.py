"""The typed stream that a request's answer is made of. Parsers produce it, renderers turn it into a wire format."""

from __future__ import annotations

from dataclasses import dataclass


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
