"""The requests of unfinished batches, in a table of their own. Imports SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from llmk.serve.storage.tables import BATCH_REQUESTS, OBJECTS

TABLE = BATCH_REQUESTS.c
PAGE_BYTES = 4 << 20
"""Bytes of what is read at once, if it is more than one row."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request: line ``number`` of the input file, from 1, which has ``size`` bytes from ``start`` on."""

    number: int
    custom_id: str
    start: int
    size: int


class BatchRequests:
    """The part of a transaction about the requests of batches."""

    connection: Connection

    def add_requests(self, batch: str, lines: Iterable[RequestLine]) -> None:
        """Adds requests to a batch."""
        if rows := [{"batch": batch, **asdict(line)} for line in lines]:
            self.connection.execute(insert(BATCH_REQUESTS), rows)

    def pending_requests(self, batch: str, *, after: int, limit: int) -> list[RequestLine]:
        """Up to ``limit`` requests without a result, from the one after number ``after`` on."""
        columns = (TABLE.number, TABLE.custom_id, TABLE.start, TABLE.size)
        wanted = select(*columns).where(TABLE.batch == batch, TABLE.number > after, TABLE.failed.is_(None))
        return [RequestLine(*row) for row in self.connection.execute(wanted.order_by(TABLE.number).limit(limit))]

    def finish_request(self, batch: str, number: int, result: bytes, *, failed: bool) -> None:
        """Stores a result, unless the request has one. Its bytes count as the batch's."""
        wanted = (TABLE.batch == batch, TABLE.number == number, TABLE.failed.is_(None))
        changed = self.connection.execute(update(BATCH_REQUESTS).where(*wanted).values(result=result, failed=failed))
        if changed.rowcount:
            grown = OBJECTS.c.num_bytes + len(result)
            self.connection.execute(update(OBJECTS).where(OBJECTS.c.id == batch).values(num_bytes=grown))

    def results(self, batch: str, *, failed: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to ``limit`` numbers and results, from the one after number ``after`` on; fewer if together they are
        large."""
        mine = (TABLE.batch == batch, TABLE.number > after, TABLE.failed.is_(failed))
        sizes = select(TABLE.number, func.length(TABLE.result)).where(*mine).order_by(TABLE.number).limit(limit)
        found = self.connection.execute(sizes).all()
        if not (count := fitting([size for _, size in found])):
            return []
        wanted = select(TABLE.number, TABLE.result).where(*mine, TABLE.number <= found[count - 1][0])
        return [(number, result) for number, result in self.connection.execute(wanted.order_by(TABLE.number))]

    def count_requests(self, batch: str) -> tuple[int, int, int]:
        """How many requests there are, how many succeeded, and how many failed."""
        counted = select(TABLE.failed, func.count()).where(TABLE.batch == batch).group_by(TABLE.failed)
        counts: dict[bool | None, int] = {row[0]: row[1] for row in self.connection.execute(counted)}
        return sum(counts.values()), counts.get(False, 0), counts.get(True, 0)

    def forget_requests(self, *batches: str) -> None:
        """Deletes the requests of batches."""
        self.connection.execute(delete(BATCH_REQUESTS).where(TABLE.batch.in_(batches)))


def fitting(sizes: Sequence[int]) -> int:
    """How many rows of these sizes are read at once: at least one."""
    left = PAGE_BYTES
    for count, size in enumerate(sizes):
        left -= size
        if left < 0 and count:
            return count
    return len(sizes)
