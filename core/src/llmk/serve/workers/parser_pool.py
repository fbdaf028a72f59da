"""Parses text with parsers that run in workers, with a watchdog: the front end's side.

One shared worker parses the text of all choices; text that arrives while it is busy is sent in one batch. Before each
call of a parser, the worker marks the choice and the parser, so that a call that does not return, or that ends the
process, can be identified. The worker is then left to that choice, which fails if the call does not return in time. All
other choices continue in a new shared worker, which first parses their earlier text again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from llmk.api import LlmkError
from llmk.serve.generation.reading import ParsedPiece, Parts, unpack_events
from llmk.serve.http.errors import ParserFailed
from llmk.serve.workers.parser_worker import Batch, Item, Outcome, culprit
from llmk.serve.workers.worker_process import Worker

logger = logging.getLogger(__name__)

PATIENCE = 0.25
"""Seconds after which a call that does not return is isolated, so that the other choices can continue."""
MAX_ISOLATED = 4
"""Limit of isolated workers."""
MAX_DEATHS = 3
"""A choice fails when this many workers ended, without a mark, while it waited for them."""
NICE = 15


class WorkerReaders:
    """Creates readers whose parsers run in workers, which are forked by ``fork``. ``seconds`` is the time limit of a
    call of a parser."""

    def __init__(self, fork: Callable[[], Awaitable[Worker]], seconds: float) -> None:
        self.fork = fork
        self.seconds = seconds
        self._keys = itertools.count()
        self._shared: ParserWorker | None = None
        self._isolated: list[ParserWorker] = []

    def open(self, setup: bytes) -> WorkerReader:
        """A reader for one choice."""
        reader = WorkerReader(next(self._keys), setup)
        self.shared.add(reader)
        return reader

    def prepare(self) -> None:
        """Starts the shared worker before it is needed."""
        _ = self.shared

    @property
    def shared(self) -> ParserWorker:
        """The worker of all choices that are not isolated."""
        if self._shared is None:
            self._shared = ParserWorker(self)
        return self._shared

    def isolate(self, worker: ParserWorker, suspect: WorkerReader) -> None:
        """Leaves the shared ``worker`` to one choice; all others continue in a new shared worker."""
        if worker is not self._shared:
            return
        self._shared = None
        self._isolated.append(worker)
        self.shared.take_over(worker.keep_only(suspect))
        if len(self._isolated) > MAX_ISOLATED:
            self._isolated[0].kill(f"was stopped: {MAX_ISOLATED} others had not returned either")

    def replace(self, worker: ParserWorker) -> None:
        """Called when ``worker`` has ended: its choices continue in the shared worker."""
        if worker is self._shared:
            self._shared = None
        else:
            self._isolated.remove(worker)
        if left := worker.keep_only(None):
            self.shared.take_over(left)

    async def close(self) -> None:
        """Ends all workers."""
        workers = [*self._isolated, *([self._shared] if self._shared else [])]
        for worker in workers:
            worker.task.cancel()
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)


@dataclass(slots=True)
class _Pending:
    """A piece of text that is not parsed yet. ``done`` is None if it is parsed again, so that no result is needed."""

    text: str
    parts: Parts
    ended: bool
    done: asyncio.Future[ParsedPiece] | None


@dataclass(slots=True, eq=False)
class WorkerReader:
    """The reader of one choice. ``parsed`` are its parsed pieces of text, with their parts."""

    key: int
    setup: bytes
    worker: ParserWorker | None = None
    parsed: list[tuple[str, Parts]] = field(default_factory=list)
    pending: deque[_Pending] = field(default_factory=deque)
    failed: ParserFailed | None = None
    deaths: int = 0

    def read(self, text: str, parts: Parts, *, ended: bool) -> asyncio.Future[ParsedPiece]:
        """A future of the events that are certain after the next piece."""
        done: asyncio.Future[ParsedPiece] = asyncio.get_running_loop().create_future()
        if self.failed is not None:
            done.set_exception(self.failed)
            done.exception()
            return done
        piece = _Pending(text, parts, ended, done)
        self.pending.append(piece)
        if self.worker is not None:
            self.worker.submit(self, piece)
        return done

    def close(self) -> None:
        """No further text will be read."""
        if self.worker is not None:
            self.worker.forget(self)
        for piece in self.pending:
            if piece.done is not None:
                piece.done.cancel()

    def take(self, outcome: Outcome) -> None:
        """Sets the result of the first pending piece."""
        piece = self.pending.popleft()
        if piece.done is None:
            return
        self.parsed.append((piece.text, piece.parts))
        if not piece.done.done():
            events = unpack_events(outcome.events)
            counts = outcome.num_tokens, outcome.num_thoughts
            piece.done.set_result(ParsedPiece(events, *counts, outcome.closed, outcome.stop_reason))

    def fail(self, error: ParserFailed) -> None:
        """Fails all pending pieces and all later ones."""
        self.failed = error
        for piece in self.pending:
            if piece.done is not None and not piece.done.done():
                piece.done.set_exception(error)
                piece.done.exception()  # only the first of several may be awaited
        self.pending.clear()
        if self.worker is not None:
            self.worker.forget(self)


class ParserWorker:
    """A worker process, and the choices whose text it parses."""

    def __init__(self, readers: WorkerReaders) -> None:
        self._pool = readers
        self._readers: dict[int, WorkerReader] = {}
        self._batch = Batch([])
        self._some = asyncio.Event()
        self._killed = ""
        self._isolated = False
        self._worker: Worker | None = None
        self._decode = msgspec.msgpack.Decoder(list[Outcome]).decode
        self.task = asyncio.create_task(self._run(), name="llmk-parsers")

    def add(self, reader: WorkerReader) -> None:
        """Adds a choice."""
        reader.worker = self
        self._readers[reader.key] = reader

    def take_over(self, readers: Iterable[WorkerReader]) -> None:
        """Adds choices of another worker: their parsed pieces are parsed again."""
        for reader in readers:
            self.add(reader)
            while reader.pending and reader.pending[0].done is None:
                reader.pending.popleft()
            again = (_Pending(text, parts, False, None) for text, parts in reader.parsed)
            reader.pending.extendleft(reversed(list(again)))
            for at, piece in enumerate(reader.pending):
                self._send(reader, piece, first=at == 0)

    def keep_only(self, kept: WorkerReader | None) -> list[WorkerReader]:
        """Removes and returns all choices except ``kept``; the worker ends after that choice."""
        self._isolated = True
        left = [reader for reader in self._readers.values() if reader is not kept]
        self._readers = {} if kept is None else {kept.key: kept}
        self._batch.items = [item for item in self._batch.items if item.key in self._readers]
        return left

    def submit(self, reader: WorkerReader, piece: _Pending) -> None:
        """Submits a piece for parsing. Pieces that arrive while the worker is busy are sent in one batch."""
        self._send(reader, piece, first=not reader.parsed and len(reader.pending) == 1)

    def forget(self, reader: WorkerReader) -> None:
        """Removes a choice."""
        reader.worker = None
        if self._readers.pop(reader.key, None) is not None:
            self._batch.closed.append(reader.key)
            self._some.set()

    def kill(self, why: str) -> None:
        """Kills the process because of a parser; ``why`` is for the error."""
        self._killed = why
        if self._worker is not None:
            self._worker.kill()

    def _send(self, reader: WorkerReader, piece: _Pending, *, first: bool) -> None:
        self._batch.items.append(
            Item(reader.key, piece.text, list(piece.parts), piece.ended, reader.setup if first else b"")
        )
        self._some.set()

    async def _run(self) -> None:
        try:
            await self._work()
        except (EOFError, LlmkError) as error:
            await self._blame(error)
        finally:
            if self._worker is not None:
                self._worker.kill()
                self._worker.close()
        self._pool.replace(self)

    async def _work(self) -> None:
        worker = self._worker = await self._pool.fork()
        while self._readers or not self._isolated:
            await self._some.wait()
            self._some.clear()
            batch, self._batch = self._batch, Batch([])
            worker.link.send(batch)
            sent = time.monotonic()
            receiving = asyncio.ensure_future(worker.link.receive())
            try:
                while not (await asyncio.wait([receiving], timeout=PATIENCE))[0]:
                    self._watch(worker, sent)
                outcomes = self._decode(receiving.result())
            finally:
                receiving.cancel()
            for outcome in outcomes:
                self._deliver(outcome)

    def _deliver(self, outcome: Outcome) -> None:
        reader = self._readers.get(outcome.key)
        if reader is None:
            return
        if outcome.failure:
            reader.fail(ParserFailed(outcome.failure, hint=outcome.hint))
        elif reader.pending:
            reader.deaths = 0
            reader.take(outcome)

    def _watch(self, worker: Worker, sent: float) -> None:
        """Called while the worker does not respond: isolates the choice whose call is running, and kills the process if
        that takes too long."""
        marked = worker.mark.read()
        since = sent if marked is None else max(marked.since, sent)
        seconds = time.monotonic() - since
        if marked is None and seconds >= self._pool.seconds + len(self._readers):
            self.kill("has hung")
        elif marked is None or seconds < PATIENCE:
            return
        elif seconds >= self._pool.seconds:
            self.kill(f"did not return within {self._pool.seconds:g} s (server.plugin_seconds)")
        elif (reader := self._readers.get(culprit(marked.what)[0])) is not None and len(self._readers) > 1:
            worker.renice(NICE)
            self._pool.isolate(self, reader)

    async def _blame(self, error: Exception) -> None:
        """Called when the process has ended: fails the choice whose parser was running. If none was, fails choices for
        which :data:`MAX_DEATHS` workers have ended.
        """
        worker = self._worker
        if worker is None:
            for reader in list(self._readers.values()):
                reader.fail(ParserFailed(f"no process for parsers can be started: {error}"))
            return
        what = self._killed or f"ended its process, which {await worker.ending()}"
        if (marked := worker.mark.read()) is not None:
            key, parser = culprit(marked.what)
            logger.error("the parser %s %s", parser, what)
            if (guilty := self._readers.get(key)) is not None:
                guilty.fail(ParserFailed.by(parser, what))
            return
        for reader in list(self._readers.values()):
            reader.deaths += bool(reader.pending)
            if reader.deaths >= MAX_DEATHS:
                reader.fail(ParserFailed(f"{MAX_DEATHS} processes ended while they ran the parsers of this response"))
