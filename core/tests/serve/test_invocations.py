"""What hosting services need of a server."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "chat.completion"),
        ({"prompt": "hi"}, "text_completion"),
    ],
)
def test_invocations_are_chats_or_texts(client: TestClient, body: dict[str, Any], kind: str) -> None:
    answer = client.post("/invocations", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == kind
    streamed = client.post("/invocations", json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("body", "param"), [({}, "prompt"), ([], None), ({"messages": 5}, "messages")])
def test_invocations_that_are_neither(client: TestClient, body: Any, param: str | None) -> None:
    answer = client.post("/invocations", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_ping(client: TestClient) -> None:
    assert client.get("/ping").json() == client.get("/health").json() == {"status": "ok"}


def test_server_info(serve: Any) -> None:
    client = serve(api_keys=("a-secret-key",), admin_keys=("another-secret",))
    assert client.get("/server_info").status_code == 401
    answer = client.get("/server_info", headers={"authorization": "Bearer a-secret-key"})
    assert answer.status_code == 200
    assert answer.json().keys() == {"version", "model", "limits"}
    assert answer.json()["limits"]["tools"] == 1024
    assert "secret" not in answer.text
    assert client.get("/ping").status_code == 200
