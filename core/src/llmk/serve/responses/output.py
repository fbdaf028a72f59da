"""The output of one response: items, opened and closed by what the model writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from llmk.api import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk.serve.responses.hosted import CallApproved, CallReturned, HostedEvent, HostedTool, ToolsListed
from llmk.serve.responses.open_items import Entries, Json, OpenCall, OpenItem, OpenMessage, OpenReasoning
from llmk.serve.responses.open_mcp_items import OpenApproval, OpenListing, OpenToolCall


class Output:
    """Follows events of parsers by those of items, and collects the items.

    An item is closed by the first event of another kind; calls are closed by their own ends. A call that fails is an
    incomplete item, and its text is part of a message. White space in front of a message's text is held back, and left
    out where no text follows: models separate reasoning and calls by it.

    Calls of ``hosted`` tools are closed when they have returned, or need approval. ``number`` is part of all ids.
    """

    def __init__(self, number: str, *, encrypted: bool = False, hosted: Mapping[str, HostedTool] | None = None) -> None:
        self._hosted = hosted or {}
        self.items: list[Json | None] = []
        self._number = number
        self._encrypted = encrypted
        self._current: OpenItem | None = None
        self._calls: dict[int, OpenItem] = {}
        self._running: dict[int, OpenToolCall] = {}
        self._blank = ""
        self._logprobs: Entries = []

    def pass_on(self, event: Event | HostedEvent) -> Iterator[Json]:
        """The events for ``event``."""
        if isinstance(event, TextDelta):
            yield from self._text(event.text)
            return
        self._blank = ""
        if isinstance(event, ToolsListed | CallApproved | CallReturned):
            yield from self._hosted_event(event)
        if isinstance(event, ReasoningDelta):
            if event.text:
                yield from self._reasoning(event.text)
        elif isinstance(event, ToolCallStart):
            yield from self._start(event)
        elif isinstance(event, ToolCallArguments):
            if event.text and event.index in self._calls:
                yield from self._calls[event.index].added(event.text)
        elif isinstance(event, ToolCallEnd | ToolCallFailed):
            failed = isinstance(event, ToolCallFailed)
            call = self._calls.pop(event.index, None)
            if isinstance(call, OpenToolCall) and not failed:
                self._running[event.index] = call
                yield from call.written()
            elif call is not None:
                yield from self._closed(call, "incomplete" if failed else "completed")
            if isinstance(event, ToolCallFailed):
                yield from self._text(event.text)

    def hold(self, logprobs: Entries) -> None:
        """Keeps log-probabilities of tokens, until there is text that they are of."""
        self._logprobs += logprobs

    def drop_logprobs(self) -> None:
        """Forgets log-probabilities of tokens that are not text."""
        self._logprobs = []

    def end(self, status: str) -> Iterator[Json]:
        """The events that close what is open; ``status`` is that of the last item. Without any item, there is an empty
        message, or one of the white space that was held back."""
        if not self.items and status == "completed":
            blank = self._blank
            yield from self._open_message()
            if blank:
                yield from self._added(blank)
        for call in [*self._calls.values(), *self._running.values()]:
            yield from self._closed(call, "incomplete")
        self._calls, self._running = {}, {}
        yield from self._close_current(status)

    @property
    def done(self) -> list[Json]:
        """The items that are done."""
        return [item for item in self.items if item is not None]

    def _text(self, text: str) -> Iterator[Json]:
        if not isinstance(self._current, OpenMessage):
            text = self._blank + text
            if not text.strip():
                self._blank = text
                return
            yield from self._close_current("completed")
            yield from self._open_message()
            self._logprobs = _covering(text, self._logprobs)
        if text:
            yield from self._added(text)

    def _added(self, text: str) -> Iterator[Json]:
        entries, self._logprobs = self._logprobs, []
        assert self._current is not None
        yield from self._current.added(text, entries)

    def _reasoning(self, text: str) -> Iterator[Json]:
        if not isinstance(self._current, OpenReasoning):
            yield from self._close_current("completed")
            self._current = OpenReasoning(self._id("rs"), len(self.items), encrypted=self._encrypted)
            yield from self._opened(self._current)
        yield from self._current.added(text)

    def _start(self, event: ToolCallStart) -> Iterator[Json]:
        yield from self._close_current("completed")
        call: OpenItem
        if (tool := self._hosted.get(event.name)) is None:
            call_id = event.id or f"call_{self._number}{len(self.items):04x}"
            call = OpenCall(self._id("fc"), len(self.items), call_id, event.name)
        elif tool.asks:
            call = OpenApproval(self._id("mcpr"), len(self.items), tool)
        else:
            call = OpenToolCall(self._id("mcp"), len(self.items), tool)
        self._calls[event.index] = call
        yield from self._opened(call)

    def _hosted_event(self, event: HostedEvent) -> Iterator[Json]:
        yield from self._close_current("completed")
        if isinstance(event, ToolsListed):
            listing = OpenListing(self._id("mcpl"), len(self.items), event)
            yield from self._opened(listing)
            yield from self._closed(listing, "completed")
        elif isinstance(event, CallApproved):
            tool, request = HostedTool(event.call.label, event.call.name), event.call.request_id
            call = self._running[event.index] = OpenToolCall(self._id("mcp"), len(self.items), tool, request)
            yield from self._opened(call)
            yield from call.added(event.call.arguments)
            yield from call.written()
        else:
            call = self._running.pop(event.index)
            for made in call.returned(event.result):
                self.items[call.output_index] = made.get("item")
                yield made

    def _open_message(self) -> Iterator[Json]:
        self._current = OpenMessage(self._id("msg"), len(self.items))
        yield from self._opened(self._current)

    def _opened(self, item: OpenItem) -> Iterator[Json]:
        self._blank = ""
        self.items.append(None)
        yield from item.opened()

    def _close_current(self, status: str) -> Iterator[Json]:
        self._blank = ""
        current, self._current = self._current, None
        if current is not None:
            yield from self._closed(current, status)

    def _closed(self, item: OpenItem, status: str) -> Iterator[Json]:
        for event in item.done(status):
            self.items[item.output_index] = event.get("item")
            yield event

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._number}o{len(self.items):04x}"


def joined(events: Sequence[Event]) -> Iterator[Event]:
    """``events``, with neighbours that are pieces of the same text as one."""
    for _, run in groupby(events, _kind):
        pieces = list(run)
        first = pieces[0]
        if len(pieces) > 1 and isinstance(first, TextDelta | ReasoningDelta | ToolCallArguments):
            yield replace(first, text="".join(piece.text for piece in pieces if isinstance(piece, type(first))))
        else:
            yield from pieces


def _kind(event: Event) -> tuple[type, int]:
    return type(event), event.index if isinstance(event, ToolCallArguments) else -1


def _covering(text: str, entries: Entries) -> Entries:
    """The last ``entries`` whose tokens cover ``text``: those before it are of markers, which are not part of it."""
    length, kept = 0, 0
    for entry in reversed(entries):
        if length >= len(text):
            break
        length += entry.length
        kept += 1
    return entries[len(entries) - kept :]
