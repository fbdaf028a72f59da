"""Readers, which parse the text of a choice with the model's parsers, in this process or in a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_args

import msgspec

from llmk.api import Event, ParserContext, ReasoningDelta, RequestError
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
    """The result of parsing a piece of text.

    ``split``: the first parser, which separates reasoning from content, returned events; ``thought``: some of them were
    reasoning; ``thinking``: the last one was. ``closed``: the output has ended by the request's rules; ``stop_reason``
    is the stop string, if that was the reason.
    """

    events: Sequence[Event]
    split: bool = False
    thought: bool = False
    thinking: bool = False
    closed: bool = False
    stop_reason: str | None = None


class Reader(Protocol):
    """Parses the text of one choice."""

    def read(self, text: str, num_tokens: int, *, ended: bool) -> ParsedPiece | asyncio.Future[ParsedPiece]:
        """The events that are certain after the next piece of text, of ``num_tokens`` tokens. If a parser fails, this
        or the future raises :class:`~llmk.serve.http.errors.ParserFailed`.
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

    def read(self, text: str, num_tokens: int, *, ended: bool) -> ParsedPiece:
        """The events that are certain now."""
        events = self._chain.push(text, num_tokens, ended=ended)
        split, gate = self._chain.split, self._chain.gate
        thought = any(isinstance(event, ReasoningDelta) for event in split)
        thinking = bool(split) and isinstance(split[-1], ReasoningDelta)
        return ParsedPiece(events, bool(split), thought, thinking, gate.closed, gate.stop_reason)

    def close(self) -> None:
        """Does nothing."""


PLAIN = ChainReader(ParserChain([], ParserContext()))
"""The reader of text that is not parsed. It has no state, so that all choices can share it."""


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
