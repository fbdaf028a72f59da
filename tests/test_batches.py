"""Files and batches by the official ``openai`` client, and a batch whose server is killed half-way."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai import OpenAI
from served import Served, until

pytestmark = pytest.mark.slow_file

CHAT = "/v1/chat/completions"


def line(id: str, **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": f"Say {id}."}], "max_tokens": 4, "temperature": 0, **fields}
    return json.dumps({"custom_id": id, "method": "POST", "url": CHAT, "body": body})


def client_of(served: Served) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    server = Served(tmp_path_factory.mktemp("batches") / "log", "--port", "0")
    yield client_of(server)
    server.close()


def waited(client: OpenAI, id: str, holds: Callable[[Any], bool], seconds: float = 120) -> Any:
    """The batch once it is as wanted."""
    end = time.monotonic() + seconds
    while not holds(batch := client.batches.retrieve(id)):
        assert time.monotonic() < end, batch
        time.sleep(0.1)
    return batch


def test_files(client: OpenAI, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "data.bin").write_bytes(content)
    made = client.files.create(
        file=tmp_path / "data.bin", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (made.bytes, made.filename, made.purpose, made.status) == (3 << 20, "data.bin", "user_data", "processed")
    assert made.expires_at == made.created_at + 3600
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    others = [client.files.create(file=("x", b"1"), purpose="batch").id for _ in range(3)]
    assert [file.id for file in client.files.list(limit=2)] == [*reversed(others), made.id]
    assert [file.id for file in client.files.list(purpose="user_data")] == [made.id]
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        client.files.content(made.id)


def test_a_batch(client: OpenAI) -> None:
    lines = "\n".join([*(line(f"r{number}") for number in range(6)), line("wrong", temperature=-1)])
    file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"purpose": "test"}
    )
    assert made.status == "validating"
    batch = waited(client, made.id, lambda batch: batch.status == "completed")
    assert batch.request_counts.to_dict() == {"total": 7, "completed": 6, "failed": 1}
    assert batch.metadata == {"purpose": "test"}
    results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert [result["custom_id"] for result in results] == [f"r{number}" for number in range(6)]
    body = json.loads(line("r0"))["body"]
    direct = client.chat.completions.create(model=client.models.list().data[0].id, **body)
    assert results[0]["response"]["body"]["choices"][0]["message"]["content"] == direct.choices[0].message.content
    (wrong,) = (json.loads(text) for text in client.files.content(batch.error_file_id).text.splitlines())
    assert wrong["response"]["body"]["error"]["param"] == "temperature"
    assert made.id in [one.id for one in client.batches.list(limit=1)]
    with pytest.raises(openai.BadRequestError, match="its status is completed"):
        client.batches.cancel(made.id)


def test_a_cancelled_batch(client: OpenAI) -> None:
    lines = "\n".join(line(f"r{number}", max_tokens=400, ignore_eos=True) for number in range(60))
    file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    waited(client, made.id, lambda batch: batch.status == "in_progress")
    assert client.batches.cancel(made.id).status == "cancelling"
    batch = waited(client, made.id, lambda batch: batch.status == "cancelled")
    assert batch.request_counts.completed < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [30, 500])
def test_each_result_is_there_once_though_the_server_was_killed(tmp_path: Path, count: int) -> None:
    lines = "\n".join(line(f"r{number}") for number in range(count))
    first = Served(tmp_path / "log", "--port", "0", env={"LLMK__STORAGE__BATCH_CONCURRENCY": "4"})
    try:
        client = client_of(first)
        file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        half = waited(client, made.id, lambda batch: batch.request_counts.completed >= count // 3, 300)
        assert half.request_counts.completed < count
        os.kill(first.process.pid, signal.SIGKILL)
    finally:
        first.close()
    second = Served(tmp_path / "log2", "--port", "0")
    try:
        client = client_of(second)
        assert client.batches.retrieve(made.id).request_counts.completed >= half.request_counts.completed
        batch = waited(client, made.id, lambda batch: batch.status == "completed", 300)
        assert batch.request_counts.completed == count
        results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
        assert [result["custom_id"] for result in results] == [f"r{number}" for number in range(count)]
        assert all(result["response"]["status_code"] == 200 for result in results)
        assert len({result["id"] for result in results}) == count
    finally:
        second.close()


def created(client: OpenAI, count: int, **fields: Any) -> Any:
    lines = "\n".join(line(f"r{number}", **fields) for number in range(count))
    file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def check_results(client: OpenAI, id: str, count: int) -> None:
    """Each request has one result, once the batch has completed."""
    batch = waited(client, id, lambda batch: batch.status not in ("validating", "in_progress", "finalizing"), 300)
    assert (batch.status, batch.request_counts.completed) == ("completed", count), batch
    results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert [result["custom_id"] for result in results] == [f"r{number}" for number in range(count)]
    assert len({result["id"] for result in results}) == count


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, 8])
def test_a_server_that_is_killed_again_and_again_ends_its_batch(tmp_path: Path, kills: int) -> None:
    rng, count = random.Random(kills), 40
    id = ""
    for number in range(kills + 1):
        served = Served(tmp_path / f"log{number}", "--port", "0", env={"LLMK__STORAGE__BATCH_CONCURRENCY": "4"})
        try:
            client = client_of(served)
            id = id or created(client, count).id
            if number == kills:
                check_results(client, id, count)
                break
            # The first is killed while it checks the lines, others while they run requests or write results.
            time.sleep(0.0 if not number else rng.uniform(0.0, 3.0))
            os.kill(served.process.pid, signal.SIGKILL)
        finally:
            served.close()


def test_an_upload_whose_server_was_killed_is_not_there(tmp_path: Path) -> None:
    first = Served(tmp_path / "log", "--port", "0")
    try:
        host, port = first.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST /v1/files HTTP/1.1\r\nhost: {host}\r\ncontent-type: multipart/form-data; boundary=x\r\n"
            part = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
            connection.sendall(f"{head}content-length: 9000000\r\n\r\n".encode() + part + b"a" * 2_000_000)
            until(lambda: any(path.stat().st_size for path in (tmp_path / "state").rglob("*.part")), 30)
            os.kill(first.process.pid, signal.SIGKILL)
    finally:
        first.close()
    second = Served(tmp_path / "log2", "--port", "0")
    try:
        client = client_of(second)
        assert list(client.files.list()) == []
        made = client.files.create(file=("a", b"1"), purpose="batch")
        assert [file.id for file in client.files.list()] == [made.id]
    finally:
        second.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_nothing_is_lost_while_the_disk_is_full(tmp_path: Path) -> None:
    served = Served(tmp_path / "log", "--port", "0", env={"LLMK__STORAGE__BATCH_CONCURRENCY": "4"})
    try:
        client, process = client_of(served), psutil.Process(served.process.pid)
        made = created(client, 30, max_tokens=40, ignore_eos=True)
        waited(client, made.id, lambda batch: batch.request_counts.completed >= 3, 120)
        process.rlimit(psutil.RLIMIT_FSIZE, (4096, -1))
        with pytest.raises(openai.InternalServerError, match="can't be read or written now") as caught:
            client.files.create(file=("a", b"a" * 100_000), purpose="batch")
        assert caught.value.status_code == 503
        assert client.chat.completions.create(
            model=served.model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2
        ).choices
        time.sleep(2)
        process.rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
        check_results(client, made.id, 30)
        assert len(list(client.files.list(purpose="batch"))) == 1
        assert not list((tmp_path / "state").rglob("*.part"))
    finally:
        served.close()
