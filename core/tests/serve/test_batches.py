"""``/v1/batches``: results in files, errors by line, cancelling, expiry, restarts, and places behind other requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from llmk.config.storage_section import StorageSection
from llmk.engine.wire.request import EngineStats
from llmk.serve.app import create_app
from llmk.serve.batches import runner
from llmk.serve.batches.gate import Gate
from llmk.serve.service import Service
from llmk.serve.storage.store import Storage

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEYS = ("one-key", "another-key")
MINE, THEIRS = ({"authorization": f"Bearer {key}"} for key in KEYS)


class Batching:
    """A client of a server over the scripted engine."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def create(self, lines: list[Any], endpoint: str = CHAT, **fields: Any) -> Any:
        content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        file = self.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}).json()
        body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", **fields}
        return self.client.post("/v1/batches", json=body)

    def end(self, created: Any) -> Any:
        """The batch once it has ended."""
        assert created.status_code == 200, created.text
        until = time.monotonic() + 20
        while True:
            batch = self.client.get(f"/v1/batches/{created.json()['id']}").json()
            if batch["status"] in ("completed", "failed", "expired", "cancelled"):
                return batch
            assert time.monotonic() < until, batch
            time.sleep(0.02)

    def lines(self, id: str | None) -> list[Any]:
        return [json.loads(line) for line in self.client.get(f"/v1/files/{id}/content").text.splitlines()]


@pytest.fixture
def open_batching(tmp_path: Path, make_service: Callable[..., Service]) -> Iterator[Callable[..., Batching]]:
    opened: list[TestClient] = []

    def make(server: dict[str, Any] | None = None, **section: Any) -> Batching:
        service = make_service(**{"api_keys": KEYS, **(server or {})})
        section = {"folder": str(tmp_path), "batch_concurrency": 4, **section}
        service.storage = Storage(StorageSection(**section), "m")
        app = create_app(service)
        opened.append(TestClient(app, "http://localhost", headers=MINE).__enter__())
        return Batching(opened[-1])

    yield make
    for client in opened:
        client.portal.call(client.app.state.batches.stop)  # type: ignore[union-attr, attr-defined]
        client.__exit__(None, None, None)


def chat(id: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"hi {id}"}], **fields}
    return {"custom_id": id, "method": "POST", "url": CHAT, "body": body}


def text(id: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": id, "method": "POST", "url": TEXT, "body": {"prompt": f"hi {id}", **fields}}


def test_each_request_has_one_result(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching()
    created = batching.create([chat(f"r{number}") for number in range(30)], metadata={"a": "b"})
    assert created.json()["status"] == "validating"
    batch = batching.end(created)
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert batch["metadata"] == {"a": "b"}
    assert batch["error_file_id"] is None
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    results = batching.lines(batch["output_file_id"])
    assert [result["custom_id"] for result in results] == [f"r{number}" for number in range(30)]
    for result in results:
        assert result["error"] is None
        assert result["response"]["status_code"] == 200
        assert result["response"]["body"]["object"] == "chat.completion"
        assert result["response"]["body"]["choices"][0]["finish_reason"]
    file = batching.client.get(f"/v1/files/{batch['output_file_id']}").json()
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert batching.client.get("/v1/batches").json()["data"] == [batch]


def test_requests_that_fail_are_in_the_error_file(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching()
    wrong = [text("temperature", temperature=-1), text("stream", stream=True), text("model", model="other")]
    batch = batching.end(batching.create([text("good"), *wrong], TEXT))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    (good,) = batching.lines(batch["output_file_id"])
    assert good["response"]["body"]["object"] == "text_completion"
    found = {line["custom_id"]: line["response"] for line in batching.lines(batch["error_file_id"])}
    assert {id: (one["status_code"], one["body"]["error"]["param"]) for id, one in found.items()} == {
        "temperature": (400, "temperature"),
        "stream": (400, "stream"),
        "model": (404, "model"),
    }


def test_invalid_lines_are_named(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching({"max_request_bytes": 2000})
    lines = [
        *(chat("a"), b"", b"{nonsense", {**chat("b"), "url": TEXT}, chat("a"), b'{"custom_id": "c"}'),
        *(b'"' + b"x" * 9000 + b'"', {**chat("d"), "method": "GET"}, {**chat("e"), "extra": 1}, b"[1]"),
    ]
    batch = batching.end(batching.create(lines))
    assert batch["status"] == "failed"
    assert batch["failed_at"]
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    found = {(error["line"], error["code"], error["param"]) for error in batch["errors"]["data"]}
    assert found >= {
        (3, "invalid_json_line", None),
        (4, "mismatched_url", "url"),
        (5, "duplicate_custom_id", "custom_id"),
        (7, "line_too_long", None),
        (8, "invalid_value", "method"),
        (9, "unknown_parameter", "extra"),
    }
    assert {line for line, *_ in found} == {3, 4, 5, 6, 7, 8, 9, 10}


def test_input_files_that_are_refused(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching(batch_requests=3)
    empty = batching.end(batching.create([b"", b"\n"]))
    assert empty["errors"]["data"][0]["message"] == "the input file has no lines"
    many = batching.end(batching.create([chat(str(number)) for number in range(4)]))
    assert "more than 3 requests (storage.batch_requests)" in many["errors"]["data"][0]["message"]
    blank = batching.end(batching.create([chat("a"), *[b""] * 100_000]))
    assert blank["errors"]["data"][0]["message"] == "the input file has more than 6 lines"


def test_creations_that_are_refused(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching(batches_per_client=1)

    def refused(status: int = 400, **fields: Any) -> Any:
        answer = batching.create([chat("a")], **fields)
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    assert refused(input_file_id="file-x")["param"] == "input_file_id"
    assert "only of /v1/chat/completions, /v1/completions" in refused(endpoint="/v1/embeddings")["message"]
    assert refused(endpoint="/v1/x")["param"] == "endpoint"
    assert refused(completion_window="1 day")["param"] == "completion_window"
    assert refused(metadata={"a": 1})["param"] == "metadata.a"
    after = {"anchor": "created_at", "seconds": 1}
    assert refused(output_expires_after=after)["param"] == "output_expires_after.seconds"
    assert "did you mean 'metadata'" in refused(meta_data={})["message"]
    other = batching.client.post("/v1/files", data={"purpose": "user_data"}, files={"file": b"x"}).json()["id"]
    assert "with the purpose 'user_data', not 'batch'" in refused(input_file_id=other)["message"]


def test_another_client_finds_no_batch(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching()
    batch = batching.end(batching.create([chat("a")]))
    client = batching.client
    assert client.get(f"/v1/batches/{batch['id']}", headers=THEIRS).status_code == 404
    assert client.post(f"/v1/batches/{batch['id']}/cancel", headers=THEIRS).status_code == 404
    assert client.get(f"/v1/files/{batch['output_file_id']}/content", headers=THEIRS).status_code == 404
    assert client.get("/v1/batches", headers=THEIRS).json()["data"] == []
    mine = batching.create([chat("a")], input_file_id=batch["input_file_id"])
    assert mine.status_code == 200
    body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    assert client.post("/v1/batches", json=body, headers=THEIRS).status_code == 400
    batching.end(mine)
    refused = client.post(f"/v1/batches/{batch['id']}/cancel")
    assert refused.status_code == 400
    assert "its status is completed" in refused.json()["error"]["message"]


def busy(batching: Batching) -> Callable[[], None]:
    """Makes the engine say that requests wait, until the returned function is called."""
    engine = batching.client.app.state.service.engine  # type: ignore[attr-defined]
    held = EngineStats(waiting=1)
    type(engine).stats = property(lambda self: held)

    def free() -> None:
        held.waiting = 0

    return free


@pytest.fixture
def keep_stats() -> Iterator[None]:
    from scripted import ScriptedEngine

    before = ScriptedEngine.__dict__["stats"]
    yield
    ScriptedEngine.stats = before  # type: ignore[method-assign]


@pytest.mark.usefixtures("keep_stats")
def test_a_batch_that_is_cancelled_keeps_its_results(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching()
    busy(batching)
    created = batching.create([chat("a"), chat("b")])
    id = created.json()["id"]
    while batching.client.get(f"/v1/batches/{id}").json()["status"] == "validating":
        time.sleep(0.01)
    assert batching.client.post(f"/v1/batches/{id}/cancel").json()["status"] in ("cancelling", "cancelled")
    batch = batching.end(created)
    assert batch["status"] == "cancelled"
    assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 0}
    assert batch["cancelled_at"] >= batch["cancelling_at"]
    assert batching.client.post(f"/v1/batches/{id}/cancel").json() == batch


@pytest.mark.usefixtures("keep_stats")
def test_a_batch_expires(open_batching: Callable[..., Batching], monkeypatch: pytest.MonkeyPatch) -> None:
    from llmk.serve.protocol import batches

    monkeypatch.setitem(batches.UNITS, "m", 1)
    batching = open_batching()
    busy(batching)
    batch = batching.end(batching.create([chat("a"), chat("b")], completion_window="1m"))
    assert batch["status"] == "expired"
    assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
    assert [(line["custom_id"], line["error"]["code"]) for line in batching.lines(batch["error_file_id"])] == [
        ("a", "batch_expired"),
        ("b", "batch_expired"),
    ]


@pytest.mark.usefixtures("keep_stats")
def test_a_batch_waits_for_other_requests(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching()
    free = busy(batching)
    created = batching.create([chat("a")])
    time.sleep(0.3)
    assert batching.client.get(f"/v1/batches/{created.json()['id']}").json()["status"] != "completed"
    assert batching.client.post(CHAT, json=chat("x")["body"]).status_code == 200
    free()
    assert batching.end(created)["status"] == "completed"


def test_how_many_requests_of_batches_run() -> None:
    async def main() -> None:
        stats = EngineStats()
        gate = Gate(8, lambda: stats)
        assert gate.room() == 8
        entered = [gate.entered() for _ in range(9)]
        for place in entered[:8]:
            await place.__aenter__()
        late = asyncio.create_task(entered[8].__aenter__())
        await asyncio.sleep(0)
        assert not late.done()
        await entered[0].__aexit__(None, None, None)
        await late
        stats.running = 8
        assert gate.room() == 8
        stats.running = 9
        assert gate.room() == 2
        stats.waiting = 1
        assert gate.room() == 0
        with gate.more(3):
            assert gate.running == 11
        assert gate.running == 8

    asyncio.run(main())


@pytest.mark.usefixtures("keep_stats")
def test_a_batch_goes_on_with_the_next_server(
    open_batching: Callable[..., Batching], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.1)
    first = open_batching()
    created = first.create([chat("a"), chat("b")])
    done = first.end(created)
    busy(first)
    later = first.create([chat("c")])
    first.client.portal.call(first.client.app.state.batches.stop)  # type: ignore[union-attr, attr-defined]
    second = open_batching()
    free = busy(second)
    second.client.portal.call(second.client.app.state.batches.search)  # type: ignore[union-attr, attr-defined]
    free()
    assert second.end(later)["status"] == "completed"
    assert second.end(created) == done


def test_storage_that_is_full_ends_a_batch(open_batching: Callable[..., Batching]) -> None:
    batching = open_batching(bytes_per_client=9000)
    batch = batching.end(batching.create([chat(str(number)) for number in range(20)]))
    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["code"] == "storage_full"
    assert len(batching.lines(batch["output_file_id"])) == batch["request_counts"]["completed"] > 0
