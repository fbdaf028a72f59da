"""A client's connection: uvicorn's, with deadlines, limits, and errors in the API's format."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from llmk.config.schema import ServerSection
from llmk.serve.http.errors import error_object

if TYPE_CHECKING:
    from llmk.serve.metrics.access_log import AccessLog

logger = logging.getLogger(__name__)

HEAD_BYTES = 32 << 10
"""Limit of the request line plus headers."""
HEAD_LINES = 256
"""Limit of the number of headers: parsing one takes as long as searching thousands of bytes."""
SMALL_CHUNK = 64
MANY_CHUNKS = 1024
"""A body with more chunks than this must have ``SMALL_CHUNK`` bytes per chunk on average, since parsing a chunk costs
as much as parsing thousands of bytes."""
LINGER_SECONDS = 2.0
"""How long a client that still sends gets to read why it was refused, before the connection is closed."""
TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of a client that believes it talks to a server of HTTPS."""
_CODES = {400: "invalid_http", 431: "headers_too_large"}
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
_WAITING = (h11.IDLE, h11.SEND_RESPONSE)


class _Parser(h11.Connection):
    """h11's parser, with limits that are checked before anything is parsed; h11 limits only incomplete headers."""

    _chunks = 0
    _body = 0
    _sends_chunks = False

    def next_event(self) -> Any:
        """The next event. Raises ``h11.RemoteProtocolError`` if a limit is exceeded."""
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body = 0
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._body += len(event.data)
            if self._chunks > MANY_CHUNKS and self._body < SMALL_CHUNK * self._chunks:
                raise h11.RemoteProtocolError(f"the body has chunks of less than {SMALL_CHUNK} bytes on average")
        return event

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override] # h11's overloads say no more
        """What to send for an event. Chunks of a body need none of h11's bookkeeping, which would take longer than all
        else that is done for a token."""
        if self._sends_chunks and isinstance(event, h11.Data):
            return b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        data: bytes | None = super().send(event)
        chunked = isinstance(event, h11.Response) and data is not None and _CHUNKED in data.lower()
        self._sends_chunks = chunked and self.our_state is h11.SEND_BODY
        return data

    @staticmethod
    def _check_head(data: bytes) -> None:
        """Raises if the request line and headers, as far as they have arrived, are too large or too many, or are
        TLS: the client was given an address with https."""
        if data.startswith(TLS_HANDSHAKE):
            raise h11.RemoteProtocolError(
                "the client speaks TLS, the server does not: use http://, or set server.tls_certificate"
            )
        ends = [end for end in (data.find(b"\n\r\n"), data.find(b"\n\n")) if end >= 0]
        end = min(ends, default=len(data))
        if end > HEAD_BYTES:
            raise h11.RemoteProtocolError(f"request line and headers exceed {HEAD_BYTES} bytes", 431)
        # Of a whole head, the end of the last line is not counted, as the request line is.
        if data.count(b"\n", 0, end) > (HEAD_LINES if ends else HEAD_LINES + 1):
            raise h11.RemoteProtocolError(f"the request has more than {HEAD_LINES} headers", 431)


class _Lingering:
    """A transport whose ``close`` waits for a client that is still sending: closing at once would reset the connection,
    and the client would not receive the response."""

    def __init__(self, transport: asyncio.Transport, protocol: Connection) -> None:
        self._transport = transport
        self._protocol = protocol
        self.lingers = False
        self.write = transport.write  # called for every token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether it is closed or closing."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Closes when all data was sent, or after ``server.write_timeout``."""
        if self.lingers or not self._protocol.receives or self._transport.is_closing():
            self._transport.close()
            self._protocol.watch_writing()
            return
        self.lingers = True
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client may have reset the connection
                self._transport.write_eof()
        self._protocol.loop.call_later(LINGER_SECONDS, self.close)


class Connection(H11Protocol):
    """The connection of one client.

    A request's header must arrive within ``read_timeout``, and a client must read responses within ``write_timeout``: a
    client that is too slow is disconnected, which aborts its request. Bodies are read by
    :class:`~llmk.serve.http.limits.Limits`, which has separate deadlines.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, section: ServerSection, log: AccessLog
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self.conn: h11.Connection = _Parser(h11.SERVER, HEAD_BYTES)
        self._section = section
        self._log = log
        self._head_due: asyncio.TimerHandle | None = None
        self._write_due: asyncio.TimerHandle | None = None
        self._unsent = 0

    @property
    def receives(self) -> bool:
        """Whether the client has not sent its whole request yet."""
        state = self.conn.their_state
        return state in (h11.SEND_BODY, h11.ERROR) or (state is h11.IDLE and bool(self.conn.trailing_data[0]))

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts waiting for the first request."""
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _Lingering(transport, self))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parses ``data``, in pieces that limit the work on a header that is too large."""
        if not self._answering:
            self._await_head()
        for at in range(0, len(data), HEAD_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[at : at + HEAD_BYTES])
        if self._answering and self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Aborts the running request."""
        for due in (self._head_due, self._write_due):
            if due is not None:
                due.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called when the client reads more slowly than the response is generated."""
        super().pause_writing()
        self.watch_writing()

    def resume_writing(self) -> None:
        """Called when the client has caught up."""
        super().resume_writing()
        if self._write_due is not None:
            self._write_due.cancel()
            self._write_due = None

    def send_400_response(self, msg: str) -> None:
        """Responds to invalid HTTP and exceeded limits; called while h11's error is being handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status >= 500:  # a transfer coding that is not supported: monitoring must not take it for our fault
            status = 400
        self._refuse(status, f"invalid HTTP: {error or msg}", _CODES.get(status, "invalid_http"))

    def watch_writing(self) -> None:
        """Disconnects the client unless it continues reading."""
        if self._write_due is None and (unsent := self.transport.get_write_buffer_size()):
            self._unsent = unsent
            self._write_due = self.loop.call_later(self._section.write_timeout, self._check_writing)

    def _check_writing(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        enough = max(1.0, self._section.write_timeout * self._section.min_bytes_per_second)
        self._write_due = None
        if self._unsent - unsent >= enough:
            self.watch_writing()
            return
        logger.info("a client was disconnected: it did not read %d bytes in time (server.write_timeout)", unsent)
        self.transport.abort()

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(self._section.read_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_due = None
        started = bool(self.conn.trailing_data[0])
        if started and self.conn.their_state is h11.IDLE:
            seconds = f"{self._section.read_timeout:g} s"
            self._refuse(408, f"the header did not arrive within {seconds} (server.read_timeout)", "read_timeout")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Sends an error, unless a response has already started, and closes the connection."""
        started = self._answering and self.cycle.response_started
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not started and self.conn.our_state in _WAITING:
            id = uuid.uuid4().hex
            body = msgspec.json.encode(error_object(message, status, code=code))
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "x-request-id": id,
                "connection": "close",
            }
            head = h11.Response(
                status_code=status, headers=list(headers.items()), reason=HTTPStatus(status).phrase.encode()
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self._log.refused(status, id, message)
        self.transport.close()
