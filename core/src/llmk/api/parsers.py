"""The contract of reasoning and tool parsers: incremental state machines over text.

One instance parses one choice of one request. A non-streaming response is assembled from the same events as a streaming
one, so that the two can't differ. A parser must yield the same result for any chunking of the same text, must not raise
on malformed text, must run in linear time, and may hold back only text that could still become a marker.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the response's content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Tool call ``index`` (from 0, in order of appearance) starts. ``id`` is the call's id if the model's dialect
    writes one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the arguments of call ``index``. Concatenated, the pieces are a JSON text, or a prefix of one if the
    call fails."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """Call ``index`` is complete. Every started call either ends or fails. ``mismatch`` says how the arguments violate
    the schema of a strict tool; the server sets it, parsers leave it empty."""

    index: int
    mismatch: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallFailed:
    """Call ``index`` is not a valid tool call: it was cut off, or its arguments are not JSON. ``text`` is the whole
    call as the model wrote it, which becomes content; earlier events of the call are discarded. The index is used up:
    the next call has the following one."""

    index: int
    text: str


Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | ToolCallFailed


@dataclass(frozen=True, slots=True)
class ParserContext:
    """The request's data that a parser may use.

    ``prompt_tail`` is the end of the rendered prompt (up to 256 characters), which shows whether the template has
    already opened a reasoning block: only a marker at its very end counts, apart from white space, since messages may
    contain markers. ``thinking`` is the request's switch for reasoning, ``None`` if it is not set; a block that the
    model opens itself is always reasoning. ``tools`` are the request's tools as OpenAI function objects
    (``{"name", "description", "parameters"}``). ``template_options`` are the keyword arguments of the chat template.
    All choices of a request share this object, so a parser must not change it. Line breaks after a marker at the end of
    the prompt are treated like line breaks after a marker in the generated text.
    """

    prompt_tail: str = ""
    thinking: bool | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict)


class ReasoningParser(Protocol):
    """Splits generated text into :class:`ReasoningDelta` and :class:`TextDelta`. Text deltas are passed to the tool
    parser, if there is one."""

    def __init__(self, context: ParserContext) -> None: ...

    @abstractmethod
    def push(self, text: str) -> Iterable[Event]:
        """Parses the next piece of generated text; returns the events that are now certain."""
        ...

    @abstractmethod
    def finish(self) -> Iterable[Event]:
        """Called at the end of the text: returns the events for text that was held back."""
        ...


class ToolParser(Protocol):
    """Splits content text into :class:`TextDelta` and tool-call events.

    Text that only starts like a call is content, and a call may follow it immediately. Arguments are passed on as the
    model wrote them: also those that the tool's schema does not list, and none that the model did not write. A call may
    come out when it is complete; where a part of its arguments comes out before, a long text does as it is written.
    """

    def __init__(self, context: ParserContext) -> None: ...

    @abstractmethod
    def push(self, text: str) -> Iterable[Event]:
        """Parses the next piece of content; returns the events that are now certain."""
        ...

    @abstractmethod
    def finish(self) -> Iterable[Event]:
        """Called at the end of the text: ends or fails an open call, and returns text that was held back."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call to write. ``arguments`` is a JSON object's Python value. ``id`` is the call's id, for dialects that
    write one."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


class CallWriter(Protocol):
    """Writes the tool calls of a dialect, and the grammar of those that a model may write.

    :attr:`~llmk.api.ParserSpec.writer` names one. Parsing what it writes returns the same calls and no content: text
    between calls is either part of the dialect, or not written.
    """

    trigger: str
    """The text with which every call, or list of calls, starts: where it appears in content, a call must follow. So it
    must be long enough for a parser to recognize a call. Empty if calls have no marker."""

    @abstractmethod
    def render(self, calls: Sequence[WrittenCall]) -> str:
        """The calls as the model writes them, without the token that ends the message."""
        ...

    @abstractmethod
    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """The grammar, in llguidance's variant of Lark, of one call of any of ``tools`` (OpenAI function objects), or,
        where ``many``, of one and more. Its first rule is ``start``; all of its text is that of calls.

        Arguments follow the schema ``parameters`` of their tool, each comes once, and a keyword that can't be
        enforced is refused with a ``ValueError`` that names it. Properties that a schema does not list need not be
        allowed. White space that the grammar allows is what the parser reads, and has a bound, such as ``%json``'s
        ``x-guidance`` has. ``marker`` returns the Lark term of a marker's text: a
        quoted string, or the special token that the model's vocabulary has for it.
        """
        ...
