"""Connections that are held open, cut off, flooded, or speak something that is not quite HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException

from hostile_cases.bodies import ASKED
from hostile_cases.frame import CHAT, COMPLETIONS, MIB, PAUSE, Act, Attack, Case
from hostile_cases.sampling import asked
from hostile_cases.wire import Outcome, Target, exchange, head, read, repeated, request

CROWD = 300
"""Connections that are held at once."""
RESET = struct.pack("ii", 1, 0)
ANY = frozenset({200, 400, 401, 403, 404, 405, 411, 415, 417, 421, 426, 505})


def _raw(name: str, what: str, sent: Callable[[Target], Sequence[bytes]], clients: int = 2) -> Case:
    """Sends bytes over a connection of its own, again and again; the server may answer, or close."""

    def prepare(target: Target) -> Act:
        pieces = sent(target)

        def act(attack: Attack) -> Iterator[Outcome]:
            yield exchange(attack.target, pieces, ANY, may_cut=True)
            attack.pause(PAUSE)

        return act

    return Case(name, what, prepare, clients)


def _each(name: str, what: str, act: Act, clients: int = 1) -> Case:
    return Case(name, what, lambda target: act, clients)


def _hold(name: str, what: str, start: Callable[[Target], bytes], drip: bytes = b"", crowd: int = CROWD) -> Case:
    """A crowd of connections that begin a request, and then keep still, or send a few bytes now and then.

    The server may cut them off when it likes; what counts is what others see.
    """

    def act(attack: Attack) -> Iterator[Outcome]:
        began, beginning = time.monotonic(), start(attack.target)
        held: list[socket.socket] = []
        try:
            for _ in range(crowd):
                with contextlib.suppress(OSError):
                    connection = attack.target.connect()
                    connection.setblocking(False)
                    held.append(connection)
                    connection.send(beginning)
            while attack.on:
                attack.pause(0.5)
                for connection in held if drip else ():
                    with contextlib.suppress(OSError):
                        connection.send(drip)
            yield Outcome(f"held {len(held)}", time.monotonic() - began)
        finally:
            for connection in held:
                connection.close()

    return Case(name, what, lambda target: act, 1)


def _large(attack: Attack) -> Iterator[Outcome]:
    """Sends 15 of 16 MB, and then keeps still."""
    began, piece = time.monotonic(), b" " * MIB
    start = head(attack.target, "POST", CHAT, {"content-length": 16 * MIB})
    held: list[socket.socket] = []
    try:
        for _ in range(60):
            if not attack.on:
                break
            with contextlib.suppress(OSError):
                held.append(attack.target.connect())
                for part in (start, *[piece] * 15):
                    held[-1].sendall(part)
        attack.pause(attack.target.within)
        yield Outcome(f"held {len(held)}", time.monotonic() - began)
    finally:
        for connection in held:
            connection.close()


def _unread(name: str, what: str, sent: Callable[[Target], bytes], crowd: int, receive: int = 4096) -> Case:
    """A crowd of clients that ask and never read the answer."""
    return _reading(name, what, sent, crowd, receive, 0)


def _reading(name: str, what: str, sent: Callable[[Target], bytes], crowd: int, receive: int, sip: int) -> Case:
    def act(attack: Attack) -> Iterator[Outcome]:
        began, asked = time.monotonic(), sent(attack.target)
        held: list[socket.socket] = []
        try:
            for _ in range(crowd):
                with contextlib.suppress(OSError):
                    connection = attack.target.connect(receive=receive)
                    connection.sendall(asked)
                    connection.setblocking(False)
                    held.append(connection)
            while attack.on:
                attack.pause(0.2)
                for connection in held if sip else ():
                    with contextlib.suppress(OSError):
                        connection.recv(sip)
            requests = len(held) * asked.count(b" HTTP/1.1\r\n")
            yield Outcome(f"held {len(held)}", time.monotonic() - began, requests=requests)
        finally:
            for connection in held:
                connection.close()

    return Case(name, what, lambda target: act, 1)


def _reset(connection: socket.socket) -> None:
    """Closes with a RST instead of a FIN."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def _storm(attack: Attack) -> Iterator[Outcome]:
    """Asks for a long stream, and leaves at some point of it."""
    body = json.dumps({"prompt": "One day", "max_tokens": 400, "stream": True, "n": 4, "ignore_eos": True}).encode()
    began = time.monotonic()
    try:
        connection = attack.target.connect()
        connection.sendall(request(attack.target, "POST", COMPLETIONS, body))
        connection.settimeout(attack.rng.random() / 2)
        with contextlib.suppress(OSError):
            connection.recv(1 << 14)
    except OSError as error:
        yield Outcome("refused", time.monotonic() - began, f"no connection: {error!r}")
        return
    (_reset if attack.rng.random() < 0.5 else socket.socket.close)(connection)
    yield Outcome("left", time.monotonic() - began)


def _knock(attack: Attack) -> Iterator[Outcome]:
    """Connects, and is gone."""
    began = time.monotonic()
    try:
        _reset(attack.target.connect())
        yield Outcome("left", time.monotonic() - began)
    except OSError as error:
        yield Outcome("refused", time.monotonic() - began, f"no connection: {error!r}")
    attack.pause(0.002)


def _pipeline(name: str, what: str, one: Callable[[Target], bytes], count: int) -> Case:
    """Many requests at once over one connection, and then their answers."""

    def act(attack: Attack) -> Iterator[Outcome]:
        began = time.monotonic()
        try:
            with attack.target.connect() as connection:
                connection.setblocking(False)
                left, answered = one(attack.target) * count, b""
                while time.monotonic() - began < attack.target.within and answered.count(b"HTTP/1.1 ") < count:
                    with contextlib.suppress(BlockingIOError):
                        left = left[connection.send(left[: 1 << 16]) :] if left else left
                    with contextlib.suppress(BlockingIOError):
                        piece = connection.recv(1 << 16)
                        if not piece:
                            break
                        answered = (answered + piece)[-(1 << 24) :]
                    if not attack.on:
                        break
                    time.sleep(0.001)
            yield Outcome("pipelined", time.monotonic() - began, requests=count)
        except OSError:
            yield Outcome("cut", time.monotonic() - began)

    return Case(name, what, lambda target: act, 2)


def _half_closed(attack: Attack) -> Iterator[Outcome]:
    """Says that it will send no more, and waits for the answer."""
    began = time.monotonic()
    try:
        with attack.target.connect() as connection:
            connection.sendall(request(attack.target, "POST", COMPLETIONS, asked()))
            connection.shutdown(socket.SHUT_WR)
            status, _ = read(connection)
            yield Outcome(str(status), time.monotonic() - began, "" if status < 500 else f"{status}")
    except (HTTPException, OSError):
        yield Outcome("cut", time.monotonic() - began)
    attack.pause(PAUSE)


def _chunked(*chunks: bytes) -> Callable[[Target], Sequence[bytes]]:
    def sent(target: Target) -> Sequence[bytes]:
        return [head(target, "POST", CHAT, {"transfer-encoding": "chunked"}), *chunks]

    return sent


def _announced(target: Target) -> bytes:
    """The beginning of a request that is never ended."""
    return head(target, "POST", CHAT, {"content-length": 1000}) + b'{"mess'


def _both(target: Target, first: str, second: str) -> bytes:
    lines = f"POST {CHAT} HTTP/1.1\r\nhost: {target.authority}\r\n{first}\r\n{second}\r\n\r\n"
    return lines.encode() + b"0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


def _with(target: Target, *lines: bytes) -> bytes:
    return b"\r\n".join([b"GET /health HTTP/1.1", b"host: " + target.authority.encode(), *lines, b"", b""])


_GOOD = b"{" + ASKED + b"}"
_SIZED = b"%x\r\n%s\r\n" % (len(_GOOD), _GOOD)
_LONG = {"prompt": "One day", "max_tokens": 1900, "ignore_eos": True, "stream": True}

CASES: tuple[Case, ...] = (
    _hold("half-bodies", "A8: 300 requests whose bodies never end", _announced),
    _hold("drip-bodies", "300 bodies that come by the byte", _announced, drip=b" "),
    _hold("half-heads", "300 heads that never end", lambda t: b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"),
    _hold("drip-heads", "300 heads that come by the line", lambda t: b"GET /health HTTP/1.1\r\n", drip=b"x-a: b\r\n"),
    _hold("silent", "300 connections without a word", lambda t: b""),
    _hold("kept", "300 connections that are kept after an answer", lambda t: head(t, "GET", "/health")),
    _hold("expect", "300 clients that expect a 100 and send nothing",
          lambda t: head(t, "POST", CHAT, {"expect": "100-continue", "content-length": 100})),
    _hold("half-tls", "300 beginnings of TLS", lambda t: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64),
    _each("half-large", "60 bodies of 16 MB of which the last is never sent", _large),
    _unread("unread-stream", "40 streams of 1,900 tokens that nobody reads",
            lambda t: request(t, "POST", COMPLETIONS, json.dumps(_LONG).encode()), 40),
    _unread("unread-choices", "128 choices with log-probabilities, streamed, that nobody reads",
            lambda t: request(t, "POST", COMPLETIONS,
                              json.dumps({**_LONG, "n": 128, "logprobs": 20}).encode()), 1),
    _reading("slow-readers", "20 streams that are read by the byte",
             lambda t: request(t, "POST", COMPLETIONS, json.dumps(_LONG).encode()), 20, 4096, 1),
    _unread("unread-tokens", "8 answers of megabytes that nobody reads",
            lambda t: request(t, "POST", "/tokenize", json.dumps({"prompt": "a b " * 250_000}).encode()), 8),
    _unread("unread-metrics", "100 times the metrics, unread", lambda t: head(t, "GET", "/metrics") * 50, 100),
    _unread("unread-health", "20,000 health checks in 10 connections, unread", lambda t: head(t, "GET",
         "/health") * 2000,
            10),
    _each("aborts", "clients that leave in the midst of their streams", _storm, 16),
    _each("knocks", "connections that are reset at once", _knock, 4),
    _each("half-closed", "clients that close their half at once", _half_closed, 4),
    _pipeline("pipelined-gets", "2,000 health checks at once in a connection", lambda t: head(t, "GET", "/health"),
         2000),
    _pipeline("pipelined-posts", "500 bad bodies at once in a connection", lambda t: request(t, "POST", CHAT, b"{"),
         500),
    _raw("header-15m", "a header of 15 MB", lambda t: [_with(t, b"x-a: " + b"a" * 15 * MIB)]),
    _raw("headers-1m", "a million headers", lambda t: [_with(t, *[b"x-a: b"] * 1_000_000)]),
    _raw("headers-60k", "as many headers as fit", lambda t: [_with(t, *[b"a:b"] * 12_000)]),
    _raw("header-name", "a name of 60 KB", lambda t: [_with(t, b"n" * 60_000 + b": 1")]),
    _raw("header-bytes", "headers of bytes that no header may have", lambda t: [_with(t, b"x-a: \x00\x7f\xff")]),
    _raw("header-fold", "a header that goes on in the next line", lambda t: [_with(t, b"x-a: b", *[b" c"] * 4000)]),
    _raw("hosts", "two hosts", lambda t: [_with(t, b"host: other")]),
    _raw("cookie", "cookies of 60 KB", lambda t: [_with(t, b"cookie: " + b"a=b; " * 12_000)]),
    _raw("ranges", "10,000 ranges", lambda t: [_with(t, b"range: bytes=" + b"0-1," * 10_000)]),
    _raw("accept", "10,000 languages", lambda t: [_with(t, b"accept-language: " + b"de;q=0.1," * 6000)]),
    _raw("line-15m", "a request line of 15 MB", lambda t: [b"GET /" + b"a" * 15 * MIB + b" HTTP/1.1\r\n\r\n"]),
    _raw("lines", "15 MB of empty lines before a request", lambda t: [b"\r\n" * (7 * MIB), _with(t)]),
    _raw("http-0.9", "HTTP/0.9", lambda t: [b"GET /health\r\n"]),
    _raw("http-2", "the preface of HTTP/2", lambda t: [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 4096]),
    _raw("http-9", "a version that is none", lambda t: [b"GET /health HTTP/9.9\r\nhost: x\r\n\r\n"]),
    _raw("noise", "a megabyte of noise", lambda t: [bytes(range(256)) * 4096]),
    _raw("chunks-1", "a body in half a million chunks of a byte", lambda t: _chunked(
        b"1\r\n \r\n" * 500_000, _SIZED, b"0\r\n\r\n")(t)),
    _raw("chunks-endless", "chunks of more than may come", lambda t: [
        head(t, "POST", CHAT, {"transfer-encoding": "chunked"}), *repeated(b"1000\r\n" + b" " * 4096 + b"\r\n",
         18 * MIB)]),
    _raw("chunk-extension", "a chunk with an extension of 15 MB", _chunked(b"1;" + b"x" * 15 * MIB + b"\r\na\r\n")),
    _raw("chunk-extensions", "chunks with an extension each", _chunked(
        b"1;a=b;c=d\r\n \r\n" * 100_000, _SIZED, b"0\r\n\r\n")),
    _raw("chunk-huge", "a chunk of 2^64 bytes", _chunked(b"ffffffffffffffff\r\nabc")),
    _raw("chunk-negative", "a chunk of -1 bytes", _chunked(b"-1\r\nabc\r\n0\r\n\r\n")),
    _raw("chunk-trailers", "a million trailers", _chunked(_SIZED, b"0\r\n" + b"x-a: b\r\n" * 1_000_000 + b"\r\n")),
    _raw("length-huge", "a body of 10^40 bytes", lambda t: [head(t, "POST", CHAT, {"content-length": 10**40})]),
    _raw("length-negative", "a body of -1 bytes", lambda t: [head(t, "POST", CHAT, {"content-length": -1})]),
    _raw("length-digits", "a length of 10,000 digits", lambda t: [head(t, "POST", CHAT,
         {"content-length": "1" * 10_000})]),
    _raw("length-unicode", "a length in other digits",
         lambda t: [_both(t, "content-length: \u00b2", "x-a: b")]),
    _raw("smuggle-both", "a length and chunks", lambda t: [_both(t, "content-length: 6",
         "transfer-encoding: chunked")]),
    _raw("smuggle-two", "two lengths", lambda t: [_both(t, "content-length: 5", "content-length: 50")]),
    _raw("smuggle-coding", "a coding that is almost chunked",
         lambda t: [_both(t, "content-length: 5", "transfer-encoding: xchunked")]),
    _raw("websocket", "a socket of the web", lambda t: [_with(
        t, b"upgrade: websocket", b"connection: upgrade", b"sec-websocket-version: 13",
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==")]),
    _raw("h2c", "an upgrade to HTTP/2", lambda t: [_with(
        t, b"upgrade: h2c", b"connection: upgrade, http2-settings", b"http2-settings: AAMAAABkAAQAAP__")]),
    _raw("proxy", "an absolute address, and CONNECT", lambda t: [
        b"GET http://127.0.0.1:1/health HTTP/1.1\r\nhost: x\r\n\r\nCONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n"]),
)  # fmt: skip
