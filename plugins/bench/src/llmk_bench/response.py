"""An HTTP/1.1 response as it arrives: head, framing, and the events of a stream."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

HEAD_BYTES = 64 << 10
"""A response with a longer head is refused."""
UNBOUNDED = -1


class BadResponse(Exception):
    """What arrived is no HTTP response."""


class Response:
    """Takes in bytes. ``on_event(data, seconds)`` is called for each ``data:`` line of an event stream, with the
    :func:`time.monotonic` of its arrival; other bodies are collected in ``body``.

    Attributes:

    done: whether all of it has arrived. reusable: whether the connection stays open for another request.
    """

    def __init__(self, on_event: Callable[[bytes, float], None]) -> None:
        self._on_event = on_event
        self._buffer = bytearray()
        self._line = b""
        self._feed = self._read_head
        self._left = UNBOUNDED
        self._streams = False
        self.status = 0
        self.body = bytearray()
        self.done = False
        self.reusable = True

    @property
    def started(self) -> bool:
        """Whether anything has arrived."""
        return bool(self.status or self._buffer)

    def feed(self, data: bytes) -> None:
        """Takes in what arrived. Raises BadResponse."""
        now = monotonic()
        self._buffer += data
        while not self.done and self._feed(now):
            pass

    def end(self) -> None:
        """The server has closed the connection. Raises BadResponse where something is missing."""
        if self.done:
            return
        if not self.status or self._left != UNBOUNDED or self._feed != self._read_plain:
            raise BadResponse("the server closed the connection before its answer was complete")
        self.done = True

    def _read_head(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES:
                raise BadResponse("the head of the response is too long")
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise BadResponse(f"no HTTP response: {first[:80]!r}")
        status = int(words[1])
        if 100 <= status < 200:
            return True
        self.status = status
        pairs = (line.partition(b":") for line in lines)
        self._start_body({name.strip().lower(): value.strip().lower() for name, _, value in pairs}, words[0])
        return True

    def _start_body(self, headers: dict[bytes, bytes], version: bytes) -> None:
        self._streams = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self.reusable = version == b"HTTP/1.1" and headers.get(b"connection", b"") != b"close"
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            self._feed = self._read_chunk
        else:
            length = headers.get(b"content-length", b"")
            self._left = int(length) if length.isdigit() else UNBOUNDED
            self.reusable = self.reusable and self._left != UNBOUNDED
            self._feed = self._read_plain
            self.done = self._left == 0

    def _read_plain(self, now: float) -> bool:
        if not self._buffer:
            return False
        self._take(bytes(self._buffer), now)
        if self._left != UNBOUNDED:
            self._left -= len(self._buffer)
            self.done = self._left <= 0
        self._buffer.clear()
        return False

    def _read_chunk(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return False
        try:
            size = int(self._buffer[:end].partition(b";")[0], 16)
        except ValueError:
            raise BadResponse(f"no size of a chunk: {bytes(self._buffer[:40])!r}") from None
        if size == 0:
            self._feed = self._read_trailer
            del self._buffer[: end + 2]
            return True
        if len(self._buffer) < end + size + 4:
            return False
        self._take(bytes(self._buffer[end + 2 : end + 2 + size]), now)
        del self._buffer[: end + size + 4]
        return True

    def _read_trailer(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return False
        self.done = end == 0
        del self._buffer[: end + 2]
        return True

    def _take(self, data: bytes, now: float) -> None:
        if not self._streams:
            self.body += data
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._on_event(line[5:].strip(), now)
