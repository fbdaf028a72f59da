"""Reading one choice's text with the model's parsers: in this process, or elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_args

import msgspec

from llmk.api import Event, ParserContext, ReasoningDelta
from llmk.serve.generation.output_rules import NO_OUTPUT_RULES, OutputRules
from llmk.serve.generation.parsing import Dialect, ParserChain

_KINDS = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in get_args(Event)}


class ReaderSetup(msgspec.Struct, array_like=True):
    """What a choice's parsers must know, and what the request says on its answer."""

    context: ParserContext
    rules: OutputRules = NO_OUTPUT_RULES


encode_setup = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(ReaderSetup).decode


@dataclass(frozen=True, slots=True)
class ParsedPiece:
    """What a piece of text came to. ``split``: the first parser, which tells thinking from content, told of some text;
    ``thought``: some of it was thinking; ``thinking``: so was its end. ``closed``: nothing more may come, by the
    request's rules, ``stop_reason`` where a stop string is why.
    """

    events: Sequence[Event]
    split: bool = False
    thought: bool = False
    thinking: bool = False
    closed: bool = False
    stop_reason: str | None = None


class Reader(Protocol):
    """Reads one choice."""

    def read(self, text: str, num_tokens: int, *, ended: bool) -> ParsedPiece | asyncio.Future[ParsedPiece]:
        """What is certain after the next piece of text, of so many tokens, in order. A reader that fails raises, or its
        future does, :class:`~llmk.serve.http.errors.ParserFailed`.
        """
        ...

    def close(self) -> None:
        """Nothing more is to be read."""
        ...


class Readers(Protocol):
    """Makes readers."""

    def open(self, setup: bytes) -> Reader:
        """A reader for one choice of a request, by its encoded :class:`ReaderSetup`."""
        ...


class ChainReader:
    """Reads in this process."""

    def __init__(self, chain: ParserChain) -> None:
        self._chain = chain

    def read(self, text: str, num_tokens: int, *, ended: bool) -> ParsedPiece:
        """What is certain now."""
        events = self._chain.push(text, num_tokens, ended=ended)
        split, gate = self._chain.split, self._chain.gate
        thought = any(isinstance(event, ReasoningDelta) for event in split)
        thinking = bool(split) and isinstance(split[-1], ReasoningDelta)
        return ParsedPiece(events, bool(split), thought, thinking, gate.closed, gate.stop_reason)

    def close(self) -> None:
        """Nothing is to be done."""


PLAIN = ChainReader(ParserChain([], ParserContext()))
"""For text that no parser reads. It keeps nothing, so that all may share it."""


class LocalReaders:
    """Readers in this process, for programs whose only client is their user."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def open(self, setup: bytes) -> ChainReader:
        """A reader for one choice."""
        decoded = decode_setup(setup)
        return ChainReader(self._dialect.chain(decoded.context, decoded.rules))


def pack_events(events: Sequence[Event]) -> list[list[Any]]:
    """Events as plain data. Raises TypeError for what is no event."""
    packed = []
    for event in events:
        if type(event) not in _FIELDS:
            raise TypeError(f"{type(event).__name__} is no event")
        packed.append([type(event).__name__, *(getattr(event, name) for name in _FIELDS[type(event)])])
    return packed


def unpack_events(packed: Sequence[Sequence[Any]]) -> list[Event]:
    """The events again."""
    return [_KINDS[name](*values) for name, *values in packed]
