"""What stat loggers may send to, for :class:`~llmk_testing.stat_examples.StatExamples`.

Each adds what arrives to a file in the folder of the logger.
"""

from __future__ import annotations

import http.server
import select
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llmk_testing.stat_examples import Answers, Receiver

HERE = "127.0.0.1"
TRANSPORT = frozenset(
    ("accept", "accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent")
)
"""Headers of HTTP's own, which say nothing of what is sent."""


@dataclass(frozen=True)
class Server:
    """What handlers of requests need: what the server does, how the file is added to, and whether its time is up."""

    answers: Answers
    add: Callable[[bytes], object]
    is_over: threading.Event


def datagrams(host: str = "host", port: str = "port", file: str = "datagrams") -> Receiver:
    """Receives UDP. ``host`` and ``port`` are the names of the options; a line's end is added to each datagram."""

    def handler(server: Server) -> type[socketserver.BaseRequestHandler]:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if server.answers == "takes":
                    server.add(self.request[0] + b"\n")

        return Handler

    return partial(_listening, socketserver.UDPServer, handler, file, lambda at: {host: HERE, port: at})


def connections(host: str = "host", port: str = "port", file: str = "received") -> Receiver:
    """Receives TCP, one connection after the other, as it comes."""

    def handler(server: Server) -> type[socketserver.BaseRequestHandler]:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if server.answers == "hangs":
                    server.is_over.wait()
                while server.answers == "takes" and not server.is_over.is_set():
                    if select.select([self.request], [], [], 0.01)[0]:
                        if not (data := self.request.recv(1 << 16)):
                            break
                        server.add(data)

        return Handler

    return partial(_listening, _TCPServer, handler, file, lambda at: {host: HERE, port: at})


def posts(url: str = "url", path: str = "/", under: str = "/under/a/path", file: str = "posts") -> Receiver:
    """Receives requests over HTTP, which it answers with 200: a line with method and path, a line for each header,
    sorted, without those of the transport, then the body, and a line's end.

    ``url`` is the name of the option, and its value is the server's address, then ``under``, as behind a reverse proxy,
    then ``path``. The path that is recorded is without ``under``; other requests are answered with 404, and recorded as
    that. ``under=""`` is for loggers whose address can't have a path."""

    def handler(server: Server) -> type[socketserver.BaseRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if server.answers == "hangs":
                    server.is_over.wait()
                    return
                is_there = self.path.startswith(f"{under}/")
                status = 404 if not is_there else 200 if server.answers == "takes" else 503
                if server.answers == "takes":
                    outside = "" if is_there else f"404 outside of {under}: "
                    server.add(f"{outside}{self.command} {self.path.removeprefix(under)}\n".encode())
                    server.add(_headers(self.headers.items()) + body + b"\n")
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            do_PUT = do_POST  # noqa: N815, the name that the server looks for

            def log_message(self, format: str, *args: Any) -> None:
                """Standard error is the card's."""

        return Handler

    return partial(
        _listening, http.server.HTTPServer, handler, file, lambda at: {url: f"http://{HERE}:{at}{under}{path}"}
    )


def _headers(items: Iterable[tuple[str, str]]) -> bytes:
    """A line for each that says something of what is sent."""
    lines = sorted(f"{name.lower()}: {text}\n" for name, text in items if name.lower() not in TRANSPORT)
    return "".join(lines).encode("utf-8", "surrogateescape")


class _TCPServer(socketserver.TCPServer):
    allow_reuse_address = True
    """It comes back at the same port."""


@contextmanager
def _listening(
    server: type[socketserver.TCPServer],
    handler: Callable[[Server], type[socketserver.BaseRequestHandler]],
    file: str,
    options: Callable[[int], Mapping[str, Any]],
    folder: Path,
    port: int,
    answers: Answers,
) -> Iterator[Mapping[str, Any]]:
    is_over = threading.Event()
    with (
        (folder / file).open("ab", buffering=0) as received,
        server((HERE, port), handler(Server(answers, received.write, is_over))) as listening,
    ):
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True, name="receiver")
        thread.start()
        try:
            yield options(listening.socket.getsockname()[1])
        finally:
            is_over.set()
            listening.shutdown()
            thread.join()
