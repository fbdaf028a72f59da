"""``/v1/files``: uploads in parts, lists, downloads, limits, and other tenants."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from llmk.config.storage_section import StorageSection
from llmk.serve.app import create_app
from llmk.serve.http.errors import InvalidForm
from llmk.serve.http.multipart import FormReader
from llmk.serve.service import Service

KEYS = ("one-key", "another-key")
MINE, THEIRS = ({"authorization": f"Bearer {key}"} for key in KEYS)
LINES = b'{"a": 1}\n\n\r\n--x'


@pytest.fixture
def open_client(tmp_path: Path, make_service: Callable[..., Service]) -> Iterator[Callable[..., TestClient]]:
    from llmk.serve.storage.store import Storage

    opened: list[TestClient] = []

    def make(**section: Any) -> TestClient:
        service = make_service(api_keys=KEYS)
        service.storage = Storage(StorageSection(folder=str(tmp_path), **section), "m")
        opened.append(TestClient(create_app(service), "http://localhost", headers=MINE).__enter__())
        return opened[-1]

    yield make
    for client in opened:
        client.__exit__(None, None, None)


def upload(client: TestClient, content: bytes = LINES, name: str = "in.jsonl", **fields: Any) -> Any:
    return client.post("/v1/files", data={"purpose": "batch", **fields}, files={"file": (name, content)})


def message(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    text: str = response.json()["error"]["message"]
    return text


def test_a_file_comes_back_as_it_was_sent(open_client: Callable[..., TestClient], tmp_path: Path) -> None:
    client = open_client()
    content = random.Random(0).randbytes(900_000) + LINES
    made = upload(client, content, "../dir/ü \n.jsonl").json()
    assert made["object"] == "file"
    assert made["bytes"] == len(content)
    assert made["filename"].startswith("ü")
    assert made["purpose"] == "batch"
    assert made["expires_at"] - made["created_at"] == 30 * 24 * 3600
    assert client.get(f"/v1/files/{made['id']}").json() == made
    assert client.get(f"/v1/files/{made['id']}/content").content == content
    assert client.delete(f"/v1/files/{made['id']}").json() == {"id": made["id"], "object": "file", "deleted": True}
    for path in (made["id"], f"{made['id']}/content", "file-0", "%00", "x" * 500):
        assert "there is no file" in message(client.get(f"/v1/files/{path}"), 404)
    assert not list((tmp_path / "files").iterdir())


def test_another_client_finds_nothing(open_client: Callable[..., TestClient]) -> None:
    client = open_client()
    id = upload(client).json()["id"]
    assert client.get("/v1/files", headers=THEIRS).json()["data"] == []
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/files?after={id}"):
        message(client.get(path, headers=THEIRS), 404)
    message(client.delete(f"/v1/files/{id}", headers=THEIRS), 404)
    assert client.get(f"/v1/files/{id}").status_code == 200


def test_lists(open_client: Callable[..., TestClient]) -> None:
    client = open_client()
    ids = [upload(client, purpose=purpose).json()["id"] for purpose in ("batch", "user_data", "batch", "batch")]

    def listed(query: str = "") -> tuple[list[int], bool]:
        page = client.get(f"/v1/files{query}").json()
        found = [file["id"] for file in page["data"]]
        assert (page["first_id"], page["last_id"]) == ((found[0], found[-1]) if found else (None, None))
        return [ids.index(id) for id in found], page["has_more"]

    assert listed() == ([3, 2, 1, 0], False)
    assert listed("?order=asc&limit=2") == ([0, 1], True)
    assert listed(f"?order=asc&limit=2&after={ids[1]}") == ([2, 3], False)
    assert listed("?purpose=batch&limit=2") == ([3, 2], True)
    assert listed("?purpose=user_data&limit=1") == ([1], False)
    assert listed("?purpose=vision") == ([], False)
    for query, param in (("limit=0", "limit"), ("order=up", "order"), ("purpose=x", "purpose"), ("limits=1", "limits")):
        refused = client.get(f"/v1/files?{query}")
        assert param in message(refused, 400)
        assert refused.json()["error"]["param"] == param


def test_when_a_file_expires(open_client: Callable[..., TestClient]) -> None:
    client = open_client()
    after: dict[str, Any] = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    made = upload(client, **after).json()
    assert made["expires_at"] == made["created_at"] + 3600
    for wrong in ("60", "x", "9" * 30, "²"):
        message(upload(client, **{**after, "expires_after[seconds]": wrong}), 400)


def test_forms_that_are_refused(open_client: Callable[..., TestClient], tmp_path: Path) -> None:
    client = open_client()
    assert "purpose" in message(client.post("/v1/files", files={"file": b"x"}), 400)
    assert "'batch'" in message(upload(client, purpose="fun"), 400)
    assert "did you mean 'purpose'" in message(upload(client, purposes="batch"), 400)
    assert "send one in the field 'file'" in message(client.post("/v1/files", files={"purpose": (None, "batch")}), 400)
    assert "more than 4096 bytes" in message(upload(client, purpose="x" * 5000), 400)
    assert "multipart/form-data" in message(client.post("/v1/files", json={"purpose": "batch"}), 415)
    form = {"content-type": "multipart/form-data; boundary=x"}
    for body in (b"", b"x", b"--x\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--"):
        message(client.post("/v1/files", content=body, headers=form), 400)
    message(client.post("/v1/files", content=b"--x--", headers={"content-type": "multipart/form-data"}), 415)
    assert not list((tmp_path / "files").iterdir())


def test_files_and_storage_are_limited(open_client: Callable[..., TestClient], tmp_path: Path) -> None:
    client = open_client(file_bytes=100_000, bytes_per_client=150_000, uploads_per_client=1)
    assert "storage.file_bytes" in message(upload(client, b"x" * 100_001), 413)
    assert "storage.file_bytes" in message(upload(client, b"x" * 200_000), 413)
    assert upload(client, b"x" * 100_000).status_code == 200
    assert "storage.bytes_per_client" in message(upload(client, b"x" * 60_000), 413)
    assert len(list((tmp_path / "files").iterdir())) == 1
    client.app.state.service.uploads["x"] = 1  # type: ignore[attr-defined]
    assert upload(client, b"x").status_code == 200
    from llmk.serve.http.auth import TENANT_DIGITS, _digest

    client.app.state.service.uploads[_digest(KEYS[0].encode())[:TENANT_DIGITS]] = 1  # type: ignore[attr-defined]
    assert "storage.uploads_per_client" in message(upload(client, b"x"), 429)


def test_other_routes_take_no_forms(open_client: Callable[..., TestClient]) -> None:
    refused = open_client().post("/v1/chat/completions", files={"file": b"x"})
    assert "content-type: application/json" in message(refused, 415)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([b"\r\n", b"--", b"x", b"--y", b"\r\n--", b"a" * 50, b"\r"]), max_size=30), st.data())
def test_any_content_in_any_parts(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], data: Any) -> None:
    content = b"".join(parts)
    assume(b"--x" not in content)
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + content + b"\r\n--x--\r\n"
    place = tmp_path_factory.mktemp("form") / "file"
    reader = FormReader("multipart/form-data; boundary=x", place, lambda size: None)
    try:
        while body:
            size = data.draw(st.integers(1, len(body)))
            reader.feed(body[:size])
            body = body[size:]
        reader.end()
    finally:
        reader.close()
    assert place.read_bytes() == content
    assert (reader.size, reader.filename) == (len(content), "f")


FRAGMENTS = (
    b"--x",
    b"\r\n",
    b"Content-Disposition: ",
    b"form-data; ",
    b'name="file"',
    b";",
    b"--",
    b":",
    b"\xff",
    b"a",
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS)))
def test_broken_forms_are_refused(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    reader = FormReader("multipart/form-data; boundary=x", tmp_path_factory.mktemp("form") / "file", lambda size: None)
    with contextlib.closing(reader), contextlib.suppress(InvalidForm):
        reader.feed(b"--x\r\n" + b"".join(parts))
        reader.end()
