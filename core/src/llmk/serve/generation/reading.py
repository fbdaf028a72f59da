"""Readers, which parse the text of a choice with the model's parsers, in this process or in a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_args

import msgspec

from llmk.api import Event, ParserContext, ReasoningDelta, RequestError, TextDelta
from llmk.serve.generation.output_rules import NO_OUTPUT_RULES, OutputRules
from llmk.serve.generation.parsing import Dialect, ParserChain

_KINDS = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in get_args(Event)}


class ReaderSetup(msgspec.Struct, array_like=True):
    """The context of a choice's parsers, and the request's output rules."""

    context: ParserContext
    rules: OutputRules = NO_OUTPUT_RULES


encode_setup = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(ReaderSetup).decode


@dataclass(frozen=True, slots=True)
class ParsedPiece:
    """The result of parsing a piece of text of ``num_tokens``; ``num_thoughts`` more tokens are known to be reasoning.

    ``closed``: the output has ended by the request's rules, with the last of these tokens; ``stop_reason`` is the stop
    string, if that was the reason.
    """

    events: Sequence[Event]
    num_tokens: int = 0
    num_thoughts: int = 0
    closed: bool = False
    stop_reason: str | None = None


Parts = Sequence[tuple[int, int]]
"""Characters and tokens of each part of a piece of text."""


class Reader(Protocol):
    """Parses the text of one choice."""

    def read(self, text: str, parts: Parts, *, ended: bool) -> ParsedPiece | asyncio.Future[ParsedPiece]:
        """The events that are certain after the next piece of text, whose parts came one after the other. The result
        is the same as if each had been read by itself. If a parser fails, this or the future raises
        :class:`~llmk.serve.http.errors.ParserFailed`.
        """
        ...

    def close(self) -> None:
        """No further text will be read."""
        ...


class Readers(Protocol):
    """Creates readers."""

    def open(self, setup: bytes) -> Reader:
        """A reader for one choice of a request, from its encoded :class:`ReaderSetup`."""
        ...


class ChainReader:
    """A reader in this process."""

    def __init__(self, chain: ParserChain) -> None:
        self._chain = chain
        self._thinking = False
        self._pending = 0
        """Tokens that no event has accounted for yet."""

    def read(self, text: str, parts: Parts, *, ended: bool) -> ParsedPiece:
        """The events that are certain now."""
        events: list[Event] = []
        at = num_tokens = num_thoughts = 0
        gate = self._chain.gate
        for number, (length, size) in enumerate(parts, 1):
            last = ended and number == len(parts)
            events += self._chain.push(text[at : at + length], size, ended=last)
            num_thoughts += self._thoughts(size, ended=last or gate.closed)
            at, num_tokens = at + length, num_tokens + size
            if gate.closed:
                break
        return ParsedPiece(events, num_tokens, num_thoughts, gate.closed, gate.stop_reason)

    def close(self) -> None:
        """Does nothing."""

    def _thoughts(self, num_tokens: int, *, ended: bool) -> int:
        """The tokens that are known to be reasoning now. Those without an event, such as markers, count as what the
        next event is."""
        split, found = self._chain.split, 0
        self._pending += num_tokens
        if split or ended:
            if self._thinking or any(isinstance(event, ReasoningDelta) for event in split):
                found = self._pending
            self._pending = 0
        if split:
            self._thinking = isinstance(split[-1], ReasoningDelta)
        return found


class _PlainReader:
    """The reader of text that is not parsed."""

    def read(self, text: str, parts: Parts, *, ended: bool) -> ParsedPiece:
        """The text."""
        return ParsedPiece([TextDelta(text)] if text else (), sum(size for _, size in parts))

    def close(self) -> None:
        """Does nothing."""


PLAIN = _PlainReader()
"""It has no state, so that all choices can share it."""


class LocalReaders:
    """Readers in this process, for programs without remote clients."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def open(self, setup: bytes) -> ChainReader:
        """A reader for one choice. Raises RequestError where the request's tools are nested too deeply."""
        try:
            decoded = decode_setup(setup)
        except RecursionError:  # this process may have less of the stack left than the one that encoded it
            raise RequestError("a value is nested too deeply", param="tools") from None
        return ChainReader(self._dialect.chain(decoded.context, decoded.rules))


def pack_events(events: Sequence[Event]) -> list[list[Any]]:
    """Events as plain data. Raises TypeError for objects that are not events."""
    packed = []
    for event in events:
        if type(event) not in _FIELDS:
            raise TypeError(f"{type(event).__name__} is not an event")
        packed.append([type(event).__name__, *(getattr(event, name) for name in _FIELDS[type(event)])])
    return packed


def unpack_events(packed: Sequence[Sequence[Any]]) -> list[Event]:
    """The inverse of :func:`pack_events`."""
    return [_KINDS[name](*values) for name, *values in packed]
