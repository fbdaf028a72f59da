"""Reads the lines of an input file, and checks them in workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from llmk.engine.wire.request import RequestContext
from llmk.serve.batches.endpoints import work_of
from llmk.serve.service import Service
from llmk.serve.workers.prepared_request import Refused, Rendered

if TYPE_CHECKING:
    from llmk.serve.storage.batch_requests import RequestLine

AT_ONCE, BYTES_AT_ONCE = 16, 4 << 20
"""Lines that are checked at once, and about how many bytes they have together."""
MOST_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Line:
    """Line ``number`` of a file, from 1. ``text`` is as long as a line may be, ``size`` as it is."""

    number: int
    start: int
    size: int
    text: bytes


class TooManyLines(Exception):
    """A file has more lines than are read."""


def lines_of(file: Path, longest: int, most: int) -> Iterator[list[Line]]:
    """The lines of a file that are not empty, some at a time.

    Raises :class:`TooManyLines` after ``most`` lines, empty or not."""
    group: list[Line] = []
    number = start = held = 0
    with file.open("rb") as opened:
        while text := opened.readline(longest + 1):
            number += 1
            if number > most:
                raise TooManyLines
            size, part = len(text), text
            while not part.endswith(b"\n") and (part := opened.readline(longest + 1)):
                size += len(part)
            if text.strip():
                group.append(Line(number, start, size, text))
                held += len(text)
            start += size
            if len(group) >= AT_ONCE or held >= BYTES_AT_ONCE:
                yield group
                group, held = [], 0
    if group:
        yield group


def read(file: Path, line: RequestLine) -> bytes:
    """The bytes of a request."""
    with file.open("rb") as opened:
        opened.seek(line.start)
        return opened.read(line.size)


@dataclass(slots=True)
class LineChecker:
    """Checks the lines of the input file of a batch for ``endpoint``, and collects the first errors."""

    service: Service
    tenant: str
    endpoint: str
    errors: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    _seen: set[bytes] = field(default_factory=set)

    async def check(self, group: list[Line]) -> list[tuple[Line, str]]:
        """The valid ones of some lines, each with its id."""
        checked = await asyncio.gather(*map(self._check, group))
        found = []
        for line, (id, url) in zip(group, checked, strict=True):
            if not id:
                continue
            digest = blake2b(id.encode(), digest_size=16).digest()
            if url != self.endpoint:
                message = f"the url is {url!r}, but the batch's endpoint is {self.endpoint!r}"
                self.refuse("mismatched_url", message, "url", line.number)
            elif digest in self._seen:
                self.refuse("duplicate_custom_id", f"the custom_id {id!r} is not unique", "custom_id", line.number)
            else:
                self._seen.add(digest)
                found.append((line, id))
        self.count += len(group)
        return found

    def refuse(self, code: str, message: str, param: str | None = None, line: int | None = None) -> None:
        """Adds an error, unless there are many."""
        if len(self.errors) < MOST_ERRORS:
            self.errors.append({"code": code, "message": message, "param": param, "line": line})

    async def _check(self, line: Line) -> tuple[str, str]:
        """Id and URL of a line; empty if it is invalid."""
        most = self.service.config.max_request_bytes
        if line.size > most:
            self.refuse(
                "line_too_long", f"the line is larger than {most} bytes (server.max_request_bytes)", None, line.number
            )
            return "", ""
        work = work_of(self.service, "batch_line", RequestContext(tenant=self.tenant))
        made = await self.service.workers.prepare(work, line.text)
        if isinstance(made, Refused):
            error = made.body["error"]
            code = "invalid_json_line" if error["code"] == "invalid_json" else error["code"]
            self.refuse(code, error["message"], error["param"], line.number)
            return "", ""
        assert isinstance(made, Rendered)
        fields = msgspec.json.decode(made.body)
        return fields["custom_id"], fields["url"]
