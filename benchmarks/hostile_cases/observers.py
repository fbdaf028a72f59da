"""Who else is there: a prober that wants to know whether the server is well, and a client with a small wish."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPException
from multiprocessing.connection import Connection

from hostile_cases.wire import Target, head, read, request

Once = Callable[[socket.socket], tuple[bool, float]]
"""What is done over a connection: whether it went well, and something measured."""

EVERY = 0.02
"""Seconds between two probes."""
THINKS = 0.05
"""Seconds between an answer and the quiet client's next question."""
ANSWER = 16
PATIENCE = 180.0
SAMPLE = struct.Struct("<dddd?")
"""When it began and ended, what else was measured, by how much the observer itself was late, whether it went well."""


def probe(target: Target, out: Connection) -> None:
    """Asks /health every 20 ms, over a connection that it keeps. Sends a sample of each answer."""
    asked = head(target, "GET", "/health")

    def once(connection: socket.socket) -> tuple[bool, float]:
        connection.sendall(asked)
        return read(connection)[0] == 200, 0.0

    _observe(target, out, once, EVERY, from_start=True)


def chat(target: Target, out: Connection) -> None:
    """Asks for a short answer, streamed, again and again. Measures also the time to the first token."""
    body = {"prompt": "One day", "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "stream": True}
    asked = request(target, "POST", "/v1/completions", json.dumps(body).encode())

    def once(connection: socket.socket) -> tuple[bool, float]:
        began = time.monotonic()
        connection.sendall(asked)
        first, received = 0.0, b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = connection.recv(1 << 16)
            if not piece:
                return False, first
            received += piece
            if not first and b"data: " in received:
                first = time.monotonic() - began
            if not received.startswith(b"HTTP/1.1 200"[: len(received)]):
                return False, first
        return received.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in received, first

    _observe(target, out, once, THINKS)


def _observe(
    target: Target,
    out: Connection,
    once: Once,
    pause: float,
    *,
    from_start: bool = False,
) -> None:
    """Does ``once`` until nobody takes samples any more: ``pause`` seconds after it ended, or began."""
    target = replace(target, within=PATIENCE)
    connection: socket.socket | None = None
    due = time.monotonic()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(max(0.0, due - time.monotonic()))
        began = time.monotonic()
        late = began - due
        reused = connection is not None
        connection, fine, other = _once(target, connection, once)
        if reused and not fine:  # a server may close what it has kept open for long
            connection, fine, other = _once(target, None, once)
        ended = time.monotonic()
        try:
            out.send_bytes(SAMPLE.pack(began, ended, other, late, fine))
        except OSError:
            return
        due = max(ended, began + pause) if from_start else ended + pause


def _once(target: Target, connection: socket.socket | None, once: Once) -> tuple[socket.socket | None, bool, float]:
    """Does ``once``; returns the connection where it can be used again, whether it went well, and what was measured."""
    try:
        if connection is None:
            connection = target.connect(source="127.0.0.1")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fine, other = once(connection)
    except (OSError, HTTPException):
        fine, other = False, 0.0
    if not fine and connection is not None:
        connection.close()
        connection = None
    return connection, fine, other
