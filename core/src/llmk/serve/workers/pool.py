"""All workers of a server."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from llmk.config.cpus import usable
from llmk.serve.workers import io_worker, parser_worker, prepare_worker, served_model
from llmk.serve.workers.io_pool import WorkerIO
from llmk.serve.workers.parser_pool import WorkerReaders
from llmk.serve.workers.prepare_lane import SMALL, Bounds, PrepareLane
from llmk.serve.workers.prepared_request import Prepared, Work
from llmk.serve.workers.worker_process import WorkerProcesses

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

NICE_SMALL, NICE_LARGE = 5, 15
"""Of workers that prepare requests: the engine and the event loop go first, and small requests before large ones."""


class Workers:
    """All worker processes. Creating it loads tokenizer, templates and parsers, and forks the fork server, which shares
    them: this process must have no other thread and no event loop yet. :meth:`start` starts the workers. Raises the
    errors of loading."""

    def __init__(self, boot: Boot) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its thread pool would not work after a fork
        self.served = prepare_worker.warm_up(served_model.load(boot))
        self.forks = WorkerProcesses(prepare_worker.MAKER, partial(served_model.given, boot))
        self.forks.share(self.served)
        self._lanes: list[PrepareLane] = []
        self._readers: WorkerReaders | None = None
        self._io: WorkerIO | None = None

    async def start(self) -> None:
        """Forks the first workers."""
        config = self.served.boot.settings.config.server
        await self.forks.start()
        bounds = Bounds(
            config.prepare_waiting, config.prepare_waiting_bytes, config.prepare_seconds, config.worker_memory
        )
        count = config.prepare_workers or (2 if usable() > 2 else 1)
        for name, nice in (("small", NICE_SMALL), ("large", NICE_LARGE)):
            fork = partial(self.forks.fork, prepare_worker.ENTRY, nice)
            # Preparing a large request takes longer than forking.
            self._lanes.append(PrepareLane(name, fork, count, bounds, ahead=name == "small"))
        self._readers = WorkerReaders(partial(self.forks.fork, parser_worker.ENTRY), config.plugin_seconds)
        if self.served.dialect.active(tools=True):
            self._readers.prepare()
        fork_io = partial(self.forks.fork, io_worker.ENTRY)
        self._io = WorkerIO(fork_io, config.plugin_seconds, config.worker_memory)

    async def prepare(self, work: Work, body: bytes) -> Prepared:
        """Prepares a request, or returns the response that refuses it.

        Raises the errors of :meth:`~llmk.serve.workers.prepare_lane.PrepareLane.prepare`.
        """
        small, large = self._lanes
        return await (small if len(body) <= SMALL else large).prepare(work, body)

    @property
    def readers(self) -> WorkerReaders:
        """The readers, whose parsers run in workers."""
        assert self._readers is not None, "the workers were not started"
        return self._readers

    @property
    def io(self) -> WorkerIO:
        """The host of IO processors."""
        assert self._io is not None, "the workers were not started"
        return self._io

    async def close(self) -> None:
        """Ends all processes."""
        for lane in self._lanes:
            await lane.close()
        for part in (self._readers, self._io):
            if part is not None:
                await part.close()
        await self.forks.close()
