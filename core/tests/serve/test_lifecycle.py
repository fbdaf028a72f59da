"""Taking the port, draining, stopping."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from scripted import ScriptedEngine

from llmk.api import ConfigError, PortInUse
from llmk.serve import lifecycle
from llmk.serve.server import Server
from llmk.serve.service import Service

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()


def test_a_port_that_is_taken_is_reported_at_once() -> None:
    with lifecycle.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert lifecycle.url_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(PortInUse, match=str(port)) as caught:
            lifecycle.bind("127.0.0.1", port)
        assert caught.value.exit_code == 7
    lifecycle.bind("127.0.0.1", port).close()


def test_small_writes_are_sent_at_once() -> None:
    """Else the first event waits for the client's delayed acknowledgement of the headers (Nagle's algorithm)."""
    with lifecycle.bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_a_bad_configuration(host: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.host"):
        lifecycle.bind(host, 0)


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with lifecycle.bind("::1", 0) as listener:
        assert lifecycle.url_of(listener).startswith("http://[::1]:")


class Live:
    """A server on a port, and raw connections to it."""

    def __init__(self, service: Service) -> None:
        self.listener = lifecycle.bind("127.0.0.1", 0)
        self.address = self.listener.getsockname()[:2]
        self.server = Server(service)
        self.writers: list[asyncio.StreamWriter] = []
        self.task = asyncio.create_task(self.server.serve([self.listener]))

    async def ask(self) -> asyncio.StreamReader:
        """Sends a streaming request and reads up to the first event."""
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BODY)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + BODY)
        await reader.readuntil(b"data: ")
        return reader


def run(scenario: Callable[[Live], Any], service: Service) -> float:
    """Runs a scenario against a live server; returns the seconds from the first stop to the server's end."""

    async def main() -> float:
        live = Live(service)
        async with asyncio.timeout(20):
            await scenario(live)
            stopped = time.monotonic()
            await live.task
            return time.monotonic() - stopped

    return asyncio.run(main())


def test_running_requests_are_finished_and_new_ones_not_taken(
    make_service: Callable[..., Service], engine: ScriptedEngine
) -> None:
    answers: list[bytes] = []

    async def scenario(live: Live) -> None:
        engine.gate = asyncio.Event()
        reader = await live.ask()
        live.server.stop()
        await asyncio.sleep(0.4)
        with pytest.raises(OSError):
            await asyncio.open_connection(*live.address)
        engine.gate.set()
        answers.append(await reader.read())

    assert run(scenario, make_service(drain_seconds=10)) < 3
    assert b"[DONE]" in answers[0]
    assert b"error" not in answers[0]
    assert engine.running == 0


@pytest.mark.parametrize(("drain_seconds", "stops"), [(0.5, 1), (60, 2)])
def test_what_takes_too_long_is_ended_in_words(
    make_service: Callable[..., Service], engine: ScriptedEngine, drain_seconds: float, stops: int
) -> None:
    answers: list[bytes] = []

    async def scenario(live: Live) -> None:
        engine.gate = asyncio.Event()
        reader = await live.ask()
        for _ in range(stops):
            live.server.stop()
        answers.append(await reader.read())

    assert run(scenario, make_service(drain_seconds=drain_seconds)) < 5
    assert b"shutting_down" in answers[0]
    assert b"[DONE]" in answers[0]
    assert engine.running == 0
