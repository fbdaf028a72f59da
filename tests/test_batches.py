"""Files and batches by the official ``openai`` client, and a batch whose server is killed half-way."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from served import Served

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


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_each_result_is_there_once_though_the_server_was_killed(tmp_path: Path, count: int) -> None:
    lines = "\n".join(line(f"r{number}") for number in range(count))
    first = Served(tmp_path / "log", "--port", "0", env={"LLMK__STORAGE__BATCH_CONCURRENCY": "4"})
    try:
        client = client_of(first)
        file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        waited(client, made.id, lambda batch: batch.request_counts.completed >= count // 3, 300)
        os.kill(first.process.pid, signal.SIGKILL)
    finally:
        first.close()
    second = Served(tmp_path / "log2", "--port", "0")
    try:
        client = client_of(second)
        before = client.batches.retrieve(made.id)
        assert before.status == "in_progress"
        assert count // 3 <= before.request_counts.completed < count
        batch = waited(client, made.id, lambda batch: batch.status == "completed", 300)
        assert batch.request_counts.completed == count
        results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
        assert [result["custom_id"] for result in results] == [f"r{number}" for number in range(count)]
        assert all(result["response"]["status_code"] == 200 for result in results)
        assert len({result["id"] for result in results}) == count
    finally:
        second.close()
