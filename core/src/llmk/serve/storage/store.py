"""The store: a database and a folder of files, opened when they are first used."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from llmk.config.storage_section import StorageSection
from llmk.serve.storage.errors import DatabaseFailed, StorageOff
from llmk.serve.storage.places import Places

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from llmk.serve.storage.transaction import Transaction

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

THREADS = 4
"""Threads that use the database; SQLite is used by one."""
PART_SECONDS = 86_400.0
"""Age of unfinished files that no server can still be writing."""
SWEEP_SECONDS = 60.0
"""Shortest time between two searches for what has expired."""
SWEPT = 200
"""Expired objects that are deleted at once, so that nothing else waits for long."""


class Storage:
    """What the clients of one served ``model`` store.

    Nothing is imported, created or opened before the first :meth:`run`.
    """

    def __init__(self, section: StorageSection, model: str) -> None:
        self.section = section
        self.model = model
        self._engine: Engine | None = None
        self._opening = threading.Lock()
        self._swept = -SWEEP_SECONDS
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_used(self) -> bool:
        """Whether there may be objects of an earlier run, found without opening the database."""
        if self.section.database in ("memory", "none"):
            return False
        return bool(self.section.database) or self._file.exists()

    @cached_property
    def is_available(self) -> bool:
        """Whether clients can store anything: a database is configured, and SQLAlchemy is installed."""
        return self.section.database != "none" and find_spec("sqlalchemy") is not None

    @cached_property
    def folder(self) -> Path:
        """The folder of files, which may not exist."""
        if self.section.database == "memory":
            self._temporary = tempfile.TemporaryDirectory(prefix="llmk-")
            return Path(self._temporary.name)
        return folder_of(self.section.folder, self.model)

    async def run(self, work: Callable[[Transaction], T], tenant: str = "") -> T:
        """Runs ``work`` in a transaction, in a thread, when it is the ``tenant``'s turn. Cancelling does not stop work
        that has started.

        Raises:
            StorageOff: if the server stores nothing, or SQLAlchemy is not installed.
            DatabaseFailed: if the database can't be used.
        """
        await self._places.enter(tenant)
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)
        running.add_done_callback(lambda _: self._places.leave())
        return await asyncio.shield(running)

    async def aclose(self) -> None:
        """Ends running transactions, and closes the database if it was opened."""
        if "_threads" in self.__dict__:
            await asyncio.to_thread(self._threads.shutdown)
        if self._engine is not None:
            self._engine.dispose()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _file(self) -> Path:
        return self.folder / "llmk.sqlite"

    @property
    def _is_sqlite(self) -> bool:
        return self.section.database in ("", "memory") or self.section.database.startswith("sqlite")

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._num_threads, "llmk-storage")

    @cached_property
    def _places(self) -> Places:
        return Places(self._num_threads)

    @property
    def _num_threads(self) -> int:
        return 1 if self._is_sqlite else THREADS

    def _run(self, work: Callable[[Transaction], T]) -> T:
        engine = self._opened()
        from sqlalchemy.exc import SQLAlchemyError

        from llmk.serve.storage.transaction import Transaction

        def commit(part: Callable[[Transaction], R]) -> R:
            with engine.connect() as connection:
                if self._is_sqlite:
                    # Transactions write what they have read, so each takes SQLite's lock at its start.
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                done = part(Transaction(connection, self.section, self.model))
                connection.commit()
                return done

        try:
            if (now := time.monotonic()) > self._swept + SWEEP_SECONDS:
                expired = commit(lambda to: to.delete_expired(SWEPT))
                self._swept = now if len(expired) < SWEPT else -SWEEP_SECONDS
                for id in expired:
                    self.content(id).unlink(missing_ok=True)
            return commit(work)
        except (SQLAlchemyError, OSError) as error:
            raise self.failed(error) from error

    def content(self, id: str) -> Path:
        """The file with an object's content, for objects that have one. ``id`` is one that the server made."""
        return self.folder / "files" / id

    def _opened(self) -> Engine:
        if self.section.database == "none":
            raise StorageOff("this server stores nothing (storage.database = 'none')")
        with self._opening:
            if self._engine is None:
                try:
                    import sqlalchemy
                except ImportError as error:
                    hint = "the operator can install it: pip install 'llmk-core[storage]'"
                    raise StorageOff("this server can't store anything: SQLAlchemy is missing", hint=hint) from error
                from llmk.serve.storage.tables import METADATA

                try:
                    self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self.content("").mkdir(exist_ok=True)
                    self._forget_parts()
                    engine = self._create()
                    METADATA.create_all(engine)
                except (sqlalchemy.exc.SQLAlchemyError, ImportError, OSError) as error:
                    raise self.failed(error) from error
                self._engine = engine
        return self._engine

    def _forget_parts(self) -> None:
        """Deletes what is left of files that were being written when a server was killed."""
        for part in self.content("").glob("*.part"):
            if part.stat().st_mtime < time.time() - PART_SECONDS:
                part.unlink(missing_ok=True)

    def _create(self) -> Engine:
        from sqlalchemy import StaticPool, create_engine, event

        if not self._is_sqlite:
            return create_engine(self.section.database, pool_size=THREADS, pool_pre_ping=True)
        url = "sqlite://" if self.section.database == "memory" else self.section.database or f"sqlite:///{self._file}"
        options = {"poolclass": StaticPool} if url == "sqlite://" else {}
        engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False}, **options)

        @event.listens_for(engine, "connect")
        def _prepare(connection: Any, record: object) -> None:
            connection.isolation_level = None
            for setting in ("journal_mode=WAL", "synchronous=FULL"):
                connection.execute(f"PRAGMA {setting}")

        return engine

    def failed(self, error: Exception) -> DatabaseFailed:
        """The error for clients where the database or the folder can't be used; logs the cause."""
        logger.error("stored objects can't be read or written", exc_info=error)
        return DatabaseFailed("what clients store can't be read or written now; the server's log says more")


def folder_of(setting: str, model: str) -> Path:
    """The folder for the setting ``storage.folder``; by default, in the user's state directory
    (https://specifications.freedesktop.org/basedir-spec)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(setting) if setting else Path(state, "llmk", quote(model, safe=""))
