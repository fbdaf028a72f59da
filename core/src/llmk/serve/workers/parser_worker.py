"""The worker that parses text with parsers of plugins, for many choices."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import msgspec

from llmk.engine.wire.plugin_mark import PluginMark
from llmk.serve.generation.reading import ChainReader, decode_setup, pack_events
from llmk.serve.http.errors import ParserFailed
from llmk.serve.workers.frames import encode, framed, receive
from llmk.serve.workers.served_model import ServedModel

ENTRY = f"{__name__}:run"


class Item(msgspec.Struct, array_like=True):
    """A piece of the text of choice ``key``. The first has the encoded
    :class:`~llmk.serve.generation.reading.ReaderSetup`."""

    key: int
    text: str
    parts: list[tuple[int, int]]
    ended: bool
    setup: bytes = b""


class Batch(msgspec.Struct, array_like=True):
    """Pieces to parse, in order, and keys of choices that have ended."""

    items: list[Item]
    closed: list[int] = []


class Outcome(msgspec.Struct, array_like=True):
    """The result of an item, with the fields of :class:`~llmk.serve.generation.reading.ParsedPiece`, or the message of
    its failure."""

    key: int
    events: list[list[Any]] = []
    num_tokens: int = 0
    num_thoughts: int = 0
    closed: bool = False
    stop_reason: str | None = None
    failure: str = ""
    hint: str = ""


def run(served: ServedModel, connection: socket.socket, mark: PluginMark) -> None:
    """Runs the worker until the front end has ended. Before each call of a parser, it marks the choice's key and the
    parser's id.
    """
    decoder, reading = msgspec.msgpack.Decoder(Batch), _Reading(served, mark)
    while True:
        batch = decoder.decode(receive(connection))
        for key in batch.closed:
            reading.readers.pop(key, None)
        connection.sendall(framed(encode([reading.read(item) for item in batch.items])))


class _Reading:
    """The running choices."""

    def __init__(self, served: ServedModel, mark: PluginMark) -> None:
        self.readers: dict[int, ChainReader] = {}
        self._dialect = served.dialect
        self._mark = mark
        self._parser = "?"
        """Id of the parser that was called last."""

    def read(self, item: Item) -> msgspec.Raw:
        """The outcome of an item, encoded here, since the result of a parser may not be encodable."""
        try:
            return msgspec.Raw(encode(self._outcome(item)))
        except ParserFailed as error:
            failure = error
        except BaseException as error:
            failure = ParserFailed.by(self._parser, f"returned invalid events: {type(error).__name__}: {error}")
        finally:
            self._mark.clear()
        self.readers.pop(item.key, None)
        message = failure.message.encode("utf-8", "replace").decode()
        return msgspec.Raw(encode(Outcome(item.key, failure=message, hint=failure.hint)))

    def _outcome(self, item: Item) -> Outcome:
        if item.setup:
            setup = decode_setup(item.setup)
            mark = partial(self._set_mark, item.key)
            self.readers[item.key] = ChainReader(self._dialect.chain(setup.context, setup.rules, mark))
        if (reader := self.readers.get(item.key)) is None:
            return Outcome(item.key)  # it has failed, which was already reported
        piece = reader.read(item.text, item.parts, ended=item.ended)
        counts = piece.num_tokens, piece.num_thoughts
        return Outcome(item.key, pack_events(piece.events), *counts, piece.closed, piece.stop_reason)

    def _set_mark(self, key: int, parser: str) -> None:
        self._parser = parser
        self._mark.set(f"{key} {parser}")


def culprit(marked: str) -> tuple[int, str]:
    """The key of the choice and the id of the parser in a mark."""
    key, _, parser = marked.partition(" ")
    return int(key), parser
