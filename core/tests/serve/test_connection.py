"""Clients that are slow, silent, greedy, or don't speak HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable

import pytest
from live import BODY, CHAT, Answer, Live, post, run, until
from scripted import ScriptedEngine

from llmk.serve.http import connection
from llmk.serve.service import Service

Make = Callable[..., Service]
BRIEF = 0.3


def test_half_sent_bodies_hold_no_place(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        for _ in range(50):
            await live.connect(post() + BODY[:10])
        await until(lambda: live.listener.connections == 50)
        answer = await live.ask(post().decode().strip().replace("\r\n", "\n"), BODY)
        assert answer.status == 200

    run(scenario, make_service(max_concurrent=1))


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/io/x"])
def test_clients_that_leave_within_their_bodies_are_no_errors(
    make_service: Make, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback for each of many that leave at once would hold the event loop."""

    async def scenario(live: Live) -> None:
        for _ in range(20):
            await live.connect(post(path=path) + BODY[:10])
        await until(lambda: live.listener.connections == 20)
        for writer in live.writers:
            writer.transport.abort()
        await until(lambda: live.listener.connections == 0)
        assert (await live.get()).status == 200
        assert 'status="499"' in (await live.get("/metrics")).body.decode()

    with caplog.at_level(logging.INFO):
        run(scenario, make_service())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info] == []


def test_a_body_that_does_not_come_is_refused(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        answer = await Answer.read(await live.connect(post() + BODY[:10]))
        assert (answer.status, answer.error["code"], answer.headers["connection"]) == (408, "read_timeout", "close")
        assert "server.read_timeout" in answer.error["message"]
        await until(lambda: live.listener.connections == 0)

    run(scenario, make_service(read_timeout=BRIEF))


def test_a_body_that_trickles_is_refused(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        reader = await live.connect(post(1000))
        answer = asyncio.create_task(Answer.read(reader))
        while not answer.done():
            live.writers[-1].write(b" ")
            await asyncio.sleep(BRIEF / 10)
        assert (await answer).error["code"] == "read_timeout"

    run(scenario, make_service(read_timeout=BRIEF, min_bytes_per_second=1000))


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_a_header_that_trickles_is_refused(make_service: Make, before: bytes) -> None:
    async def scenario(live: Live) -> None:
        reader = await live.connect(before)
        if before:
            assert (await Answer.read(reader)).status == 200
        answer = asyncio.create_task(Answer.read(reader))
        for piece in (b"GET /health HTTP/1.1\r\n", *[b"x-a: b\r\n"] * 1000):
            if answer.done():
                break
            live.writers[-1].write(piece)
            await asyncio.sleep(BRIEF / 10)
        assert ((await answer).status, (await answer).error["code"]) == (408, "read_timeout")
        await until(lambda: live.listener.connections == 0)

    run(scenario, make_service(read_timeout=BRIEF))


def test_a_connection_on_which_nothing_comes_is_closed(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        assert await (await live.connect()).read() == b""
        idle = await live.connect(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await Answer.read(idle)).status == 200
        assert await idle.read() == b""

    run(scenario, make_service(read_timeout=BRIEF, keep_alive=BRIEF))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_read_is_cut_off(make_service: Make, engine: ScriptedEngine, stream: bool) -> None:
    """The kernel takes some megabytes for a client that doesn't read, so that the answer must be larger."""

    async def scenario(live: Live) -> None:
        body = json.dumps({"prompt": "x", "stream": stream}).encode()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, live.address)
        slow.sendall(post(len(body), "/v1/completions") + body)
        await until(lambda: bool(engine.calls))
        await until(lambda: live.listener.connections == engine.running == 0)
        slow.close()

    engine.script = "x" * (20 << 20)
    engine.chunk = 1 << 20
    run(scenario, make_service(write_timeout=BRIEF))


def test_a_client_that_reads_slowly_but_surely_is_served(make_service: Make, engine: ScriptedEngine) -> None:
    async def scenario(live: Live) -> None:
        body = json.dumps({"prompt": "x"}).encode()
        reader = await live.connect(post(len(body), "/v1/completions") + body)
        head = await reader.readuntil(b"\r\n\r\n")
        left = int(Answer(head[:-4], b"").headers["content-length"])
        while left:
            left -= len(await reader.read(1 << 20))
            await asyncio.sleep(BRIEF / 10)

    engine.script = "x" * (8 << 20)
    engine.chunk = 1 << 20
    run(scenario, make_service(write_timeout=BRIEF))


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n", 400, "invalid_http"),
        (post("x"), 400, "invalid_http"),
        (post("-1"), 400, "invalid_http"),
        (post("1\r\ncontent-length: 2"), 400, "invalid_http"),
        (post("5\r\ntransfer-encoding: gzip"), 400, "invalid_http"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 431, "headers_too_large"),
        (b"X" * 50_000 + b" /health HTTP/1.1\r\nhost: localhost\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 40_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 50_000 + b"\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 256 + b"\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\n" * 256 + b"\n", 431, "headers_too_large"),
        (b"\r\n" * 300 + b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, "invalid_http"),
    ],
)
def test_what_is_not_http_gets_an_error_object(
    make_service: Make, sent: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(live: Live) -> None:
        answer = await Answer.read(await live.connect(sent))
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.headers["x-request-id"]
        assert len(answer.body) < 1000
        metrics = (await live.get("/metrics")).body.decode()
        assert f'llmk_http_requests_total{{method="other",path="other",status="{status}"}} 1.0' in metrics

    with caplog.at_level(logging.INFO, "llmk.access"):
        run(scenario, make_service())
    assert all(len(record.getMessage()) < 500 for record in caplog.records)


def test_the_log_names_a_client_of_https(make_service: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(live: Live) -> None:
        answer = await Answer.read(await live.connect(b"\x16\x03\x01\x02\x00\x01\x00"))
        assert "the client speaks TLS, the server does not" in answer.error["message"]

    with caplog.at_level(logging.INFO, "llmk.access"):
        run(scenario, make_service())
    assert "the client speaks TLS, the server does not: use http://" in caplog.text


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_request_may_have_many_headers(make_service: Make, cut: int) -> None:
    """Also where the last bytes of the header arrive later."""

    async def scenario(live: Live) -> None:
        sent = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 255 + b"\r\n"
        reader = await live.connect(sent[: len(sent) - cut])
        await asyncio.sleep(BRIEF / 10)
        live.writers[-1].write(sent[len(sent) - cut :])
        assert (await Answer.read(reader)).status == 200

    run(scenario, make_service())


def test_a_client_that_resets_its_connection_is_no_error(
    make_service: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing our half fails where the connection is gone, which the event loop learns of later."""

    def gone(transport: object) -> None:
        raise OSError("Transport endpoint is not connected")

    async def scenario(live: Live) -> None:
        monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write_eof", gone)
        await live.connect(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 4096)
        await until(lambda: live.listener.connections == 0)

    with caplog.at_level(logging.INFO):
        run(scenario, make_service())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info] == []


def test_a_broken_chunk_ends_a_request(make_service: Make, engine: ScriptedEngine) -> None:
    async def scenario(live: Live) -> None:
        head = post().replace(b"content-length: 49", b"transfer-encoding: chunked")
        assert b"chunked" in head
        reader = await live.connect(head + b"zz\r\n")
        answer = await Answer.read(reader)
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        whole = await Answer.read(await live.connect(head + b"31\r\n" + BODY + b"\r\n0\r\n\r\n"))
        assert whole.status == 200
        crumbs = b"".join(b"1\r\n%c\r\n" % byte for byte in b" " * (connection.MANY_CHUNKS + 10))
        answer = await Answer.read(await live.connect(head + crumbs))
        assert (answer.status, "chunks" in answer.error["message"]) == (400, True)

    run(scenario, make_service())
    assert len(engine.calls) == 1


def test_a_client_that_asks_before_it_sends_is_answered(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        expect = "expect: 100-continue"
        reader = await live.connect(post(len(BODY), CHAT, expect))
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        live.writers[-1].write(BODY)
        assert (await Answer.read(reader)).status == 200
        refused = await Answer.read(await live.connect(post(10**9, CHAT, expect)))
        assert refused.status == 413
        refused = await Answer.read(await live.connect(post(10, "/nowhere", expect)))
        assert refused.status == 404

    run(scenario, make_service())


@pytest.mark.parametrize("more", [(), ("connection: close",)])
def test_a_client_that_sends_too_much_reads_why(make_service: Make, more: tuple[str, ...]) -> None:
    """It sends all of it before it looks for an answer."""

    async def scenario(live: Live) -> None:
        reader = await live.connect(post(4 << 20, CHAT, *more))
        for _ in range(64):
            live.writers[-1].write(b" " * (64 << 10))
            await live.writers[-1].drain()
        answer = await Answer.read(reader)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")

    run(scenario, make_service(max_request_bytes=1 << 20))


@pytest.mark.parametrize("path", ["/nowhere", "/health", "/v1/cache/pins"])
def test_a_body_that_no_handler_reads_is_neither_kept_nor_waited_for(make_service: Make, path: str) -> None:
    async def scenario(live: Live) -> None:
        reader = await live.connect(post(1 << 30, path))
        answer = await Answer.read(reader)
        assert answer.status in (403, 404, 405)
        # What still comes is read and dropped, but not for ever.
        while live.listener.connections:
            live.writers[-1].write(b" " * 1000)
            await asyncio.sleep(0.01)

    run(scenario, make_service(read_timeout=BRIEF))


def test_connections_have_a_bound(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        held = [await live.connect() for _ in range(3)]
        await until(lambda: live.listener.connections == 3)
        answer = await live.get()
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
        assert "server.max_connections_per_client" in answer.error["message"]
        live.listener.most = 3
        answer = await live.get()
        assert (answer.status, answer.error["code"]) == (503, "unavailable")
        assert "server.max_connections" in answer.error["message"]
        live.writers[0].close()
        await until(lambda: live.listener.connections == 2)
        assert (await live.get()).status == 200
        await until(lambda: live.listener.connections == 2)
        assert len(held) == 3

    run(scenario, make_service(max_connections_per_client=3))


def test_bodies_have_a_bound_over_all_requests(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        for _ in range(2):
            await live.connect(post(1000) + b" " * 600)
        await until(lambda: live.listener.connections == 2)
        await asyncio.sleep(BRIEF)
        answer = await Answer.read(await live.connect(post(500) + b" " * 500))
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        assert "server.max_buffered_bytes" in answer.error["message"]
        assert answer.headers["retry-after"] == "1"
        for writer in live.writers[:2]:
            writer.close()
        await until(lambda: live.listener.connections <= 1)
        assert (await Answer.read(await live.connect(post() + BODY))).status == 200

    run(scenario, make_service(max_buffered_bytes=1500))


def test_the_first_bytes_of_a_pipelined_request_are_not_lost(make_service: Make) -> None:
    async def scenario(live: Live) -> None:
        reader = await live.connect(2 * (post() + BODY) + b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert [(await Answer.read(reader)).status for _ in range(3)] == [200, 200, 200]

    run(scenario, make_service())


async def chunks(reader: asyncio.StreamReader) -> list[bytes]:
    """A body's chunks."""
    found = []
    while size := int(await reader.readline(), 16):
        found.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readline() == b"\r\n"
    return found


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_streams_are_framed_as_the_version_of_http_says(make_service: Make, version: str) -> None:
    """Chunks pass h11's bookkeeping by: what comes after them on the connection must be parsed as ever."""

    async def scenario(live: Live) -> None:
        body = json.dumps({**json.loads(BODY), "stream": True}).encode()
        asked = post(len(body)).replace(b"HTTP/1.1", f"HTTP/{version}".encode()) + body
        reader = await live.connect(asked)
        for again in (True, False) if version == "1.1" else (False,):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head.partition(b"\r\n")[0]
            assert (b"transfer-encoding: chunked" in head.lower()) is (version == "1.1")
            data = b"".join(await chunks(reader)) if version == "1.1" else await reader.read()
            *events, end, rest = data.split(b"\n\n")
            assert (end, rest) == (b"data: [DONE]", b"")
            assert len([json.loads(event.removeprefix(b"data: ")) for event in events]) > 2
            if again:
                live.writers[-1].write(asked)

    run(scenario, make_service())
