"""A server with several engines: what clients and operators see."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from served import Served

pytestmark = [pytest.mark.slow, pytest.mark.slow_file]

FLAGS = ("--port", "0", "--replicas", "3", "--select.router.use", "prefix_aware", "--model.dtype", "float32")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("replicas")
    events = ("--events.endpoint", f"ipc://{folder}/events", "--events.replay-endpoint", f"ipc://{folder}/replay")
    served = Served(folder / "log", *FLAGS, *events, env={"LLMK__SERVER__ADMIN_KEYS": "operator"})
    served.replay = f"ipc://{folder}/replay"
    yield served
    served.process.terminate()
    served.process.wait(60)


def engines(server: Served) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [one for one in children if one.status() != psutil.STATUS_ZOMBIE and one.name() == "llmk-engine"]


def operate(server: Served, method: str, path: str) -> Any:
    request = urllib.request.Request(server.url + path, method=method, headers={"x-admin-key": "operator"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def metric(server: Served, name: str) -> dict[str, float]:
    text = server.get("/metrics")[1]
    return {labels: float(value) for labels, value in re.findall(rf"^llmk_{name}{{(.*)}} (\S+)$", text, re.M)}


def body(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Story {number}: once upon a time", "max_tokens": 48, "temperature": 0} | more


def text(answer: tuple[int, Any]) -> str:
    assert answer[0] == 200, answer
    return str(answer[1]["choices"][0]["text"])


def until(holds, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_replica_that_is_killed_costs_no_answer(server: Served) -> None:
    right = [text(server.post("/v1/completions", body(number))) for number in range(4)]
    victim = engines(server)[0]
    with ThreadPoolExecutor(24) as clients:
        asked = [clients.submit(server.post, "/v1/completions", body(number % 4)) for number in range(48)]
        streams = [clients.submit(list, server.stream("/v1/completions", body(number))) for number in range(4)]
        time.sleep(0.3)
        victim.kill()
        assert [text(each.result()) for each in asked] == [right[number % 4] for number in range(48)]
        for number, each in enumerate(streams):
            parts = [choice["text"] for event in each.result() for choice in event["choices"]]
            assert "".join(parts) == right[number]
    assert server.get("/health")[0] == 200
    until(lambda: len([one for one in operate(server, "GET", "/v1/replicas")["data"] if one["status"] == "up"]) == 3)
    assert sum(metric(server, "replica_restarts_total").values()) == 1
    assert sum(metric(server, "replica_sequences_moved_total").values()) >= 1


def test_a_conversation_stays_where_its_prefix_is(server: Served) -> None:
    before = metric(server, "replica_sequences_given_total")
    prompt = "Tell me a long story of a donkey and a garden. " * 8
    for turn in range(4):
        answer = server.post("/v1/completions", body(0, prompt=prompt, prompt_cache_key="a"))
        prompt += text(answer) + f" And then? {turn} "
    after = metric(server, "replica_sequences_given_total")
    assert sorted(after[name] - before[name] for name in after) == [0, 0, 4]
    assert answer[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 50


def test_events_tell_of_each_replica(server: Served) -> None:
    context = zmq.Context()
    reader = context.socket(zmq.DEALER)
    reader.connect(server.replay)
    reader.send_multipart((b"", (0).to_bytes(8, "big")))
    stored: dict[int, set[int]] = {}
    while True:
        assert reader.poll(10_000)
        _, _, payload = reader.recv_multipart()
        if not payload:
            break
        _, events, rank = msgspec.msgpack.decode(payload)
        for name, *fields in events:
            known = stored.setdefault(rank, set())
            known.update(fields[0]) if name == "BlockStored" else known.clear()
    context.destroy(linger=0)
    listed = {one["number"]: one["cached_blocks"] for one in operate(server, "GET", "/v1/replicas")["data"]}
    assert {rank: len(blocks) for rank, blocks in stored.items()} == listed


def test_operators_drain_and_scale(server: Served) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(server.url + "/v1/replicas")
    assert operate(server, "POST", "/v1/replicas/0/drain")["status"] == "draining"
    given = metric(server, "replica_sequences_given_total")
    for number in range(6):
        text(server.post("/v1/completions", body(number)))
    after = metric(server, "replica_sequences_given_total")
    assert next(after[name] - given[name] for name in after if 'replica="0"' in name) == 0
    assert operate(server, "POST", "/v1/replicas/0/resume")["status"] == "up"
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(server.post, "/v1/completions", body(number)) for number in range(16)]
        assert len(operate(server, "PUT", "/v1/replicas?count=2&patience=0.1")["data"]) == 2
        assert all(text(each.result()) for each in asked)
    assert len(engines(server)) == 2
    with pytest.raises(urllib.error.HTTPError, match="404"):
        operate(server, "POST", "/v1/replicas/9/drain")


def test_a_replica_that_answers_slowly_for_ever_loses_its_requests(tmp_path: Path) -> None:
    """Its process runs, though hardly ever: clients see latency, and the right answers."""
    quick = ("--replicas.slow-seconds", "2", "--replicas", "2", "--port", "0", "--model.dtype", "float32")
    served = Served(tmp_path / "log", *quick, env={"LLMK__SERVER__ADMIN_KEYS": "operator"})
    try:
        right = [text(served.post("/v1/completions", body(number))) for number in range(4)]
        slow, over = engines(served)[0], threading.Event()
        with ThreadPoolExecutor(9) as clients:
            asked = [clients.submit(served.post, "/v1/completions", body(number % 4)) for number in range(8)]
            clients.submit(hinder, slow, over)
            try:
                assert [text(each.result()) for each in asked] == [right[number % 4] for number in range(8)]
                until(lambda: "slow" in {one["status"] for one in operate(served, "GET", "/v1/replicas")["data"]})
                assert sum(metric(served, "replica_sequences_moved_total").values()) >= 1
                assert sum(metric(served, "replica_restarts_total").values()) == 0
                assert text(served.post("/v1/completions", body(1))) == right[1]
            finally:
                over.set()
    finally:
        served.close()


def hinder(process: psutil.Process, over: threading.Event) -> None:
    """Lets a process run for some milliseconds at a time, with seconds in between."""
    while not over.is_set():
        process.suspend()
        over.wait(1.5)
        process.resume()
        over.wait(0.005)
