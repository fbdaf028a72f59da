"""What stat loggers may send to, for :class:`~llmk_testing.stat_examples.StatExamples`.

Each adds what arrives to a file in the folder of the logger.
"""

from __future__ import annotations

import http.server
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from llmk_testing.stat_examples import Receiver

HERE = "127.0.0.1"

Add = Callable[[bytes], object]
"""Adds to the file."""


def datagrams(host: str = "host", port: str = "port", file: str = "datagrams") -> Receiver:
    """Receives UDP. ``host`` and ``port`` are the names of the options; a line's end is added to each datagram."""

    def handler(add: Add) -> type[socketserver.BaseRequestHandler]:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                add(self.request[0] + b"\n")

        return Handler

    return partial(_listening, socketserver.UDPServer, handler, file, lambda at: {host: HERE, port: at})


def connections(host: str = "host", port: str = "port", file: str = "received") -> Receiver:
    """Receives TCP, one connection after the other, as it comes."""

    def handler(add: Add) -> type[socketserver.BaseRequestHandler]:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while data := self.request.recv(1 << 16):
                    add(data)

        return Handler

    return partial(_listening, socketserver.TCPServer, handler, file, lambda at: {host: HERE, port: at})


def posts(url: str = "url", path: str = "/", file: str = "posts") -> Receiver:
    """Receives requests over HTTP, which it answers with 200: a line with method and path, the body, and a line's end.
    ``url`` is the name of the option, of which ``path`` is the end."""

    def handler(add: Add) -> type[socketserver.BaseRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                add(f"{self.command} {self.path}\n".encode() + body + b"\n")
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            do_PUT = do_POST  # noqa: N815, the name that the server looks for

            def log_message(self, format: str, *args: Any) -> None:
                """Standard error is the card's."""

        return Handler

    return partial(_listening, http.server.HTTPServer, handler, file, lambda at: {url: f"http://{HERE}:{at}{path}"})


@contextmanager
def _listening(
    server: type[socketserver.TCPServer],
    handler: Callable[[Add], type[socketserver.BaseRequestHandler]],
    file: str,
    options: Callable[[int], Mapping[str, Any]],
    folder: Path,
) -> Iterator[Mapping[str, Any]]:
    with (folder / file).open("ab", buffering=0) as received, server((HERE, 0), handler(received.write)) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True, name="receiver")
        thread.start()
        try:
            yield options(listening.socket.getsockname()[1])
        finally:
            listening.shutdown()
            thread.join()
