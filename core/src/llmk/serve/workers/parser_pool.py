"""Reading text with parsers that run in workers, under a watchdog: the front end's side.

One worker reads for all choices. What came to them while it was busy goes to it together. Before each call of a parser
it marks whose call that is, so that one that does not return, or that ends the process, is known: its choice is left
alone with that worker, and fails if that doesn't come back in time; all others go on in a fresh worker, which reads
again what it must know of them.
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
from llmk.serve.generation.reading import ParsedPiece, unpack_events
from llmk.serve.http.errors import ParserFailed
from llmk.serve.workers.parser_worker import Batch, Item, Outcome, culprit
from llmk.serve.workers.worker_process import Worker

logger = logging.getLogger(__name__)

PATIENCE = 0.25
"""Seconds that all choices wait for one of them."""
LONERS = 4
"""So many choices may be left alone with a worker at once."""
DEATHS = 3
"""So many workers may end while they read a choice, without a mark that tells whose call it was."""
NICE = 15


class WorkerReaders:
    """Makes readers whose parsers run in workers that ``fork`` makes. One call of a parser may take ``seconds``."""

    def __init__(self, fork: Callable[[], Awaitable[Worker]], seconds: float) -> None:
        self.fork = fork
        self.seconds = seconds
        self._keys = itertools.count()
        self._crew: ParserWorker | None = None
        self._loners: list[ParserWorker] = []

    def open(self, setup: bytes) -> WorkerReader:
        """A reader for one choice."""
        reader = WorkerReader(next(self._keys), setup)
        self.crew.add(reader)
        return reader

    def prepare(self) -> None:
        """Starts the worker before it is needed."""
        _ = self.crew

    @property
    def crew(self) -> ParserWorker:
        """Who reads for choices that nothing is held against."""
        if self._crew is None:
            self._crew = ParserWorker(self)
        return self._crew

    def isolate(self, crew: ParserWorker, suspect: WorkerReader) -> None:
        """Leaves ``crew`` to one choice; all others go on in a fresh one."""
        if crew is not self._crew:
            return
        self._crew = None
        self._loners.append(crew)
        self.crew.take_over(crew.keep_only(suspect))
        if len(self._loners) > LONERS:
            self._loners[0].kill(f"was stopped: {LONERS} others had not returned either")

    def replace(self, crew: ParserWorker) -> None:
        """``crew`` has ended: its choices go on in the one that reads for all."""
        if crew is self._crew:
            self._crew = None
        else:
            self._loners.remove(crew)
        if left := crew.keep_only(None):
            self.crew.take_over(left)

    async def close(self) -> None:
        """Ends all workers."""
        crews = [*self._loners, *([self._crew] if self._crew else [])]
        for crew in crews:
            crew.task.cancel()
        await asyncio.gather(*(crew.task for crew in crews), return_exceptions=True)


@dataclass(slots=True)
class _Asked:
    """A piece that was not read yet. ``done`` is None where it is read again, and nobody waits for it."""

    text: str
    num_tokens: int
    ended: bool
    done: asyncio.Future[ParsedPiece] | None


@dataclass(slots=True, eq=False)
class WorkerReader:
    """One choice. ``known`` are the pieces that were read, ``asked`` those that were not."""

    key: int
    setup: bytes
    crew: ParserWorker | None = None
    known: list[tuple[str, int]] = field(default_factory=list)
    asked: deque[_Asked] = field(default_factory=deque)
    failed: ParserFailed | None = None
    deaths: int = 0

    def read(self, text: str, num_tokens: int, *, ended: bool) -> asyncio.Future[ParsedPiece]:
        """What will be certain after the next piece."""
        done: asyncio.Future[ParsedPiece] = asyncio.get_running_loop().create_future()
        if self.failed is not None:
            done.set_exception(self.failed)
            done.exception()
            return done
        asked = _Asked(text, num_tokens, ended, done)
        self.asked.append(asked)
        if self.crew is not None:
            self.crew.ask(self, asked)
        return done

    def close(self) -> None:
        """Nothing more is to be read."""
        if self.crew is not None:
            self.crew.forget(self)
        for asked in self.asked:
            if asked.done is not None:
                asked.done.cancel()

    def take(self, outcome: Outcome) -> None:
        """Takes what the piece that was asked for first came to."""
        asked = self.asked.popleft()
        if asked.done is None:
            return
        self.known.append((asked.text, asked.num_tokens))
        if not asked.done.done():
            events = unpack_events(outcome.events)
            flags = outcome.split, outcome.thought, outcome.thinking, outcome.closed
            asked.done.set_result(ParsedPiece(events, *flags, outcome.stop_reason))

    def fail(self, error: ParserFailed) -> None:
        """No more of it is read."""
        self.failed = error
        for asked in self.asked:
            if asked.done is not None and not asked.done.done():
                asked.done.set_exception(error)
                asked.done.exception()  # whoever waits for several hears of the first alone
        self.asked.clear()
        if self.crew is not None:
            self.crew.forget(self)


class ParserWorker:
    """A worker, and the choices that it reads."""

    def __init__(self, readers: WorkerReaders) -> None:
        self._pool = readers
        self._readers: dict[int, WorkerReader] = {}
        self._batch = Batch([])
        self._some = asyncio.Event()
        self._killed = ""
        self._lone = False
        self._worker: Worker | None = None
        self._decode = msgspec.msgpack.Decoder(list[Outcome]).decode
        self.task = asyncio.create_task(self._run(), name="llmk-parsers")

    def add(self, reader: WorkerReader) -> None:
        """Reads a choice from now on."""
        reader.crew = self
        self._readers[reader.key] = reader

    def take_over(self, readers: Iterable[WorkerReader]) -> None:
        """Reads choices that another crew has begun: the pieces that were known of each are read again."""
        for reader in readers:
            self.add(reader)
            while reader.asked and reader.asked[0].done is None:
                reader.asked.popleft()
            again = (_Asked(text, num_tokens, False, None) for text, num_tokens in reader.known)
            reader.asked.extendleft(reversed(list(again)))
            for at, asked in enumerate(reader.asked):
                self._send(reader, asked, first=at == 0)

    def keep_only(self, kept: WorkerReader | None) -> list[WorkerReader]:
        """Ends when it has read what it keeps; returns all other choices that it read until now."""
        self._lone = True
        left = [reader for reader in self._readers.values() if reader is not kept]
        self._readers = {} if kept is None else {kept.key: kept}
        self._batch.items = [item for item in self._batch.items if item.key in self._readers]
        return left

    def ask(self, reader: WorkerReader, asked: _Asked) -> None:
        """Has a piece read. Those that come before the worker is free go to it together."""
        self._send(reader, asked, first=not reader.known and len(reader.asked) == 1)

    def forget(self, reader: WorkerReader) -> None:
        """Reads a choice no more."""
        reader.crew = None
        if self._readers.pop(reader.key, None) is not None:
            self._batch.closed.append(reader.key)
            self._some.set()

    def kill(self, why: str) -> None:
        """Ends its worker, for what a parser does there."""
        self._killed = why
        if self._worker is not None:
            self._worker.kill()

    def _send(self, reader: WorkerReader, asked: _Asked, *, first: bool) -> None:
        self._batch.items.append(
            Item(reader.key, asked.text, asked.num_tokens, asked.ended, reader.setup if first else b"")
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
        while self._readers or not self._lone:
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
        elif reader.asked:
            reader.deaths = 0
            reader.take(outcome)

    def _watch(self, worker: Worker, sent: float) -> None:
        """The worker has not answered for a while: leaves it to who keeps it, and ends it when that takes too long."""
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
        """The worker has ended: the choice whose parser was called fails, or, where none was, one that has seen too
        many die.
        """
        worker = self._worker
        if worker is None:
            for reader in list(self._readers.values()):
                reader.fail(ParserFailed(f"no process can be started that runs parsers: {error}"))
            return
        what = self._killed or f"ended its process, which {await worker.ending()}"
        if (marked := worker.mark.read()) is not None:
            key, parser = culprit(marked.what)
            logger.error("the parser %s %s", parser, what)
            if (guilty := self._readers.get(key)) is not None:
                guilty.fail(ParserFailed.by(parser, what))
            return
        for reader in list(self._readers.values()):
            reader.deaths += bool(reader.asked)
            if reader.deaths >= DEATHS:
                reader.fail(ParserFailed(f"{DEATHS} processes ended while they ran the parsers of this answer"))
