"""``llmk serve`` as a process: load with aborts, shutting down, a killed engine, a taken port."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai import AsyncOpenAI
from served import LLMK, Served, until

SLOW: Any = {"ignore_eos": True, "max_tokens": 400, "temperature": 0}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers on free ports and ends them after the test."""
    servers: list[Served] = []

    def started(*args: str) -> Served:
        servers.append(Served(tmp_path / f"log{len(servers)}", "--port", "0", *args))
        return servers[-1]

    yield started
    for server in servers:
        server.close()


@pytest.mark.slow
def test_aborts_leave_nothing_behind(start: Callable[..., Served]) -> None:
    """64 streams and 16 whole answers at once, most of which the client leaves at a random point."""
    served = start("--server.max-concurrent", "200")
    rng = random.Random(5)
    first = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    assert served.post("/v1/chat/completions", first)[0] == 200, "it starts what runs parsers, which stays"
    tasks = served.metric("llmk_frontend_tasks")

    async def whole(client: AsyncOpenAI, messages: Any) -> str:
        options: Any = {"max_tokens": 200, "n": 2, "extra_body": {"ignore_eos": True}}
        asked = client.chat.completions.create(model=served.model, messages=messages, **options)
        try:
            await asyncio.wait_for(asked, rng.uniform(0.1, 1.5))
        except TimeoutError:
            return "left"
        return "done"

    async def one(client: AsyncOpenAI, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"Tell me about number {number}, please. " * rng.randint(1, 12)}]
        leave_after = rng.choice([0, 1, 3, 8, 20, None])
        if number >= 64:
            return await whole(client, messages)
        stream = await client.chat.completions.create(
            model=served.model, messages=messages, stream=True, max_tokens=24, extra_body={"ignore_eos": True}
        )
        seen = 0
        async for _ in stream:
            if leave_after is not None and seen >= leave_after:
                await stream.close()
                return "left"
            seen += 1
        return "done"

    async def all_of_them() -> list[str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(80)))

    outcomes = asyncio.run(all_of_them())
    assert {"left", "done"} == set(outcomes)
    for gauge in ("llmk_num_requests_running", "llmk_num_requests_waiting", "llmk_kv_cache_blocks_used"):
        until(lambda gauge=gauge: served.metric(gauge) == 0, what=f"{gauge} stays above 0")
    until(lambda: served.metric("llmk_http_requests_in_flight") == 1)
    until(lambda: served.metric("llmk_frontend_tasks") <= tasks, what=f"there are more than {tasks:.0f} tasks")
    status, answer = served.post("/v1/completions", {"prompt": "One", "max_tokens": 2})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 2


def test_a_client_that_leaves_before_the_first_token_frees_its_request(start: Callable[..., Served]) -> None:
    served = start()
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    body = json.dumps({"prompt": "One two three", **SLOW})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    until(lambda: served.metric("llmk_num_requests_running") == 1)
    connection.close()
    until(lambda: served.metric("llmk_num_requests_running") == 0, timeout=5)
    until(lambda: served.metric("llmk_kv_cache_blocks_used") == 0, timeout=5)


class Asking(threading.Thread):
    """A streaming request in the background."""

    def __init__(self, served: Served, max_tokens: int) -> None:
        super().__init__()
        address = urlsplit(served.url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        self._body = json.dumps({"prompt": "One", **SLOW, "max_tokens": max_tokens, "stream": True})
        self.begun = threading.Event()
        self.text = ""
        self.start()
        assert self.begun.wait(30)

    def run(self) -> None:
        self._connection.request("POST", "/v1/completions", self._body, {"content-type": "application/json"})
        for line in self._connection.getresponse():
            self.begun.set()
            self.text += line.decode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(start: Callable[..., Served], number: signal.Signals) -> None:
    served = start()
    asking = Asking(served, max_tokens=150)
    children = served.children()
    served.process.send_signal(number)
    assert served.wait() == 0
    asking.join(10)
    assert asking.text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in asking.text
    until(lambda: not any(child.is_running() for child in children), what="the engine outlives its server")
    assert "Traceback" not in served.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("drain_seconds", "signals"), [("0.5", 1), ("60", 2)])
def test_requests_that_take_too_long_are_cut_short(
    start: Callable[..., Served], drain_seconds: str, signals: int
) -> None:
    served = start("--server.drain-seconds", drain_seconds)
    asking = Asking(served, max_tokens=400)
    began = time.monotonic()
    for _ in range(signals):
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    assert served.wait() == 0
    asking.join(10)
    assert "shutting_down" in asking.text or '"finish_reason":"length"' in asking.text
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_stopped_engine_is_not_healthy(start: Callable[..., Served]) -> None:
    served = start()
    children = served.children()
    assert served.get("/health")[0] == 200
    for child in children:
        child.suspend()
    began = time.monotonic()
    assert served.get("/health")[0] == 503
    assert time.monotonic() - began < 3
    for child in children:
        child.resume()
    until(lambda: served.get("/health")[0] == 200)


def test_a_taken_port_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*LLMK, "serve", "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_for_no_model_is_an_error() -> None:
    done = subprocess.run([*LLMK, "serve", "--served-model-name", "gpt-4"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "gpt-4" in done.stderr
    assert "llmk serve MODEL" in done.stderr


@pytest.mark.slow
def test_a_full_queue_is_refused_with_a_time_to_wait(start: Callable[..., Served]) -> None:
    served = start("--max-num-seqs", "1", "--scheduler.max-waiting", "1", "--served-model-name", "tiny", "demo")
    assert served.model == "tiny"

    async def ask() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
            asked = [
                client.completions.create(model="tiny", prompt="One", max_tokens=60, extra_body={"ignore_eos": True})
                for _ in range(8)
            ]
            return await asyncio.gather(*asked, return_exceptions=True)

    refused = [answer for answer in asyncio.run(ask()) if isinstance(answer, Exception)]
    assert 0 < len(refused) < 8
    assert all(isinstance(error, openai.RateLimitError) for error in refused)
    assert all(int(error.response.headers["retry-after"]) >= 1 for error in refused)
