"""Everything around the answers: models, tokens, health, metrics, keys, limits, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from scripted import ScriptedEngine
from sse import events
from starlette.requests import Request
from starlette.testclient import TestClient

from llmk.api import ContextLengthExceeded, EngineDead, Overloaded, QueueTimeout, RequestTimeout
from llmk.engine.wire.engine_info import Outage
from llmk.serve.app import create_app
from llmk.serve.http.openapi import DocumentRoute
from llmk.serve.service import Service

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


def test_models(client: TestClient) -> None:
    card = client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["object"], card["max_model_len"]) == ("org/scripted", "model", 512)
    assert client.get("/v1/models/org/scripted").json() == card
    response = client.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODY),
        ("/v1/completions", {"prompt": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [65]}),
    ],
)
def test_another_model_is_not_found(client: TestClient, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json={**body, "model": "gpt-4"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "org/scripted" in error["message"]


def test_tokenize_and_back(client: TestClient) -> None:
    answer = client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True}).json()
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [1, 97, 98], "token_strs": ["\x01", "a", "b"]}
    plain = client.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()
    assert plain["tokens"] == [97, 98]
    chat = client.post("/tokenize", json={**BODY, "chat_template_kwargs": {"enable_thinking": True}}).json()
    text = client.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"]
    assert text == "<user>hi<assistant>True"
    assert client.post("/tokenize", json={}).json()["error"]["param"] == "prompt"
    assert client.post("/detokenize", json={"tokens": [256]}).json()["error"]["param"] == "tokens"


def test_the_schema_is_shown(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize", "/health"} <= set(schema["paths"])
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert {"ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest", "PinRequest"} <= names
    assert names <= set(schema["components"]["schemas"])
    assert client.get("/openapi.json").json() == schema


def test_the_schema_is_built_once_and_not_by_the_thread_that_serves() -> None:
    """It takes a quarter of a second, in which nothing would be answered."""
    builders = []

    class App(FastAPI):
        def openapi(self) -> dict[str, Any]:
            builders.append(threading.get_ident())
            return {"paths": {}}

    async def get_twice() -> list[bytes]:
        route = DocumentRoute(App())
        got = await asyncio.gather(*(route.get(Request({"type": "http"})) for _ in range(2)))
        return [bytes(response.body) for response in got]

    assert asyncio.run(get_twice()) == [b'{"paths": {}}'] * 2
    assert len(builders) == 1
    assert builders[0] != threading.get_ident()


def test_health_reports_the_state_of_the_engine(client: TestClient, engine: ScriptedEngine) -> None:
    assert client.get("/health").status_code == 200
    engine.silence = 12.5
    assert client.get("/health").json() == {"status": "ok", "busy_seconds": 12.5}
    engine.healthy = False
    response = client.get("/health")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert "restarting" not in response.json()
    assert "retry-after" not in response.headers
    engine.outage = Outage(since=1_700_000_000.25, cause="it was killed", attempts=2)
    response = client.get("/health")
    outage = {"since": "2023-11-14T22:13:20.250+00:00", "cause": "it was killed", "attempts": 2}
    assert (response.status_code, response.json()["restarting"], response.headers["retry-after"]) == (503, outage, "2")


def test_version_and_plan(client: TestClient) -> None:
    assert set(client.get("/version").json()) == {"version"}
    plan = client.get("/v1/plan").json()
    assert (plan["model"], plan["parsers"]["tool"]["id"]) == ("scripted", "test.bracket")


def test_metrics(client: TestClient) -> None:
    client.post(CHAT, json={**BODY, "n": 2})
    client.post(CHAT, json={"bad": 1})
    text = client.get("/metrics").text
    for line in (
        'llmk_num_requests_running{model_name="org/scripted"} 0.0',
        'llmk_kv_cache_usage_perc{model_name="org/scripted"} 0.0',
        'llmk_request_success_total{finished_reason="stop",model_name="org/scripted"} 2.0',
        'llmk_time_to_first_token_seconds_count{model_name="org/scripted"} 1.0',
        'llmk_inter_token_latency_seconds_count{model_name="org/scripted"} 6.0',
        'llmk_request_generation_tokens_sum{model_name="org/scripted"} 24.0',
        'llmk_http_requests_total{method="POST",path="/v1/chat/completions",status="400"} 1.0',
        "llmk_http_requests_in_flight 1.0",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/nowhere", 404, "not_found"), ("GET", CHAT, 405, "method_not_allowed")],
)
def test_wrong_routes(client: TestClient, method: str, path: str, status: int, code: str) -> None:
    response = client.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert path in error["message"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "application/json", 400),
        (b'{"prompt": "x", "temperature": 1' + b"0" * 5000 + b"}", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"{}", "text/plain", 415),
    ],
)
def test_bodies_that_cannot_be_read(client: TestClient, content: bytes, kind: str, status: int) -> None:
    response = client.post(CHAT, content=content, headers={"content-type": kind})
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_an_unexpected_error_is_an_error_object_and_a_traceback_in_the_log(
    client: TestClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object, **kwargs: object) -> str:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(engine.tokenizer, "encode", broken)
    with caplog.at_level(logging.ERROR):
        response = client.post(CHAT, json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "surprise" not in response.text
    assert any(record.exc_info and "surprise" in str(record.exc_info[1]) for record in caplog.records)


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_engine(client: TestClient, engine: ScriptedEngine, stream: bool) -> None:
    async def refuse(error: Exception) -> Any:
        raise error
        yield

    for error, status, code in (
        (ContextLengthExceeded("too long", param="messages"), 400, "context_length_exceeded"),
        (RequestTimeout("late"), 504, "request_timeout"),
        (QueueTimeout("late"), 504, "queue_timeout"),
        (EngineDead("gone", retry_after=7.1), 503, "engine_dead"),
        (Overloaded("full", retry_after=2.5), 429, "rate_limit_exceeded"),
    ):
        engine.generate = lambda *args, error=error, **kwargs: refuse(error)  # type: ignore[method-assign]
        response = client.post(CHAT, json={**BODY, "stream": stream})
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers["retry-after"] == "3"


def test_a_key_is_a_tenant(serve: Callable[..., TestClient], engine: ScriptedEngine) -> None:
    client = serve(api_keys=("first", "sécond"))
    for key in ("first", "sécond"):
        for path, body in ((CHAT, BODY), ("/v1/completions", {"prompt": ["a", "b"]})):
            headers = {b"authorization": f"Bearer {key}".encode()}
            assert client.post(path, json=body, headers=headers).status_code == 200
        tenants = {call.context.tenant for call in engine.calls}
        assert tenants == {hashlib.sha256(key.encode()).hexdigest()[:16]}
        engine.calls.clear()
    assert serve().post(CHAT, json=BODY).status_code == 200
    assert engine.calls[0].context.tenant == "testclient"


@pytest.mark.parametrize(
    ("address", "tenant"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8::1:2:3:4", "2001:db8::/64"), ("::ffff:192.0.2.7", "192.0.2.7")],
)
def test_without_keys_an_address_is_a_tenant(
    make_service: Callable[..., Service], engine: ScriptedEngine, address: str, tenant: str
) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    with TestClient(create_app(make_service()), base_url="http://localhost", client=(address, 5)) as client:
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert [call.context.tenant for call in engine.calls] == [tenant] * 2
        assert tenant not in client.get("/metrics").text


def test_keys(serve: Callable[..., TestClient]) -> None:
    client = serve(api_keys=("first", "sécond"))
    assert client.get("/health").status_code == 200
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"}, {"authorization": "first"}):
        response = client.get("/v1/models", headers=header)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
    for key in ("first", "sécond"):
        header = {b"authorization": f"Bearer {key}".encode()}
        assert client.get("/metrics", headers=header).status_code == 200  # type: ignore[arg-type]


def test_large_bodies(serve: Callable[..., TestClient]) -> None:
    client = serve(max_request_bytes=100)
    whole = json.dumps({"messages": [{"role": "user", "content": "x" * 100}]}).encode()
    unannounced = (whole[at : at + 30] for at in range(0, len(whole), 30))
    for content in (whole, unannounced):
        response = client.post(CHAT, content=content, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        assert "server.max_request_bytes" in response.json()["error"]["message"]
    assert client.post(CHAT, json=BODY).status_code == 200


def test_request_ids(client: TestClient) -> None:
    assert client.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for bad in ("x" * 200, "a b"):
        assert client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"] not in ("", bad)
    assert client.get("/nowhere").headers["x-request-id"]


def test_cors(serve: Callable[..., TestClient]) -> None:
    client = serve(cors_origins=("https://a.example",), api_keys=("k",))
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert client.options(CHAT, headers=ask).headers["access-control-allow-origin"] == "https://a.example"
    assert (
        "access-control-allow-origin"
        not in client.options(CHAT, headers={**ask, "origin": "https://b.example"}).headers
    )


class Wire:
    """One request to an ASGI application, whose client can leave at any time."""

    def __init__(self, app: Any, body: dict[str, Any], path: str = CHAT) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.first = asyncio.Event()
        self._request = {"type": "http.request", "body": json.dumps(body).encode()}
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "state": {}}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._request:
            request, self._request = self._request, {}
            return request
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.first.set()

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("change", [{}, {"path": "/v1/completions", "body": {"prompt": ["a", "b"]}}])
def test_a_client_that_leaves_ends_its_request(
    make_service: Callable[..., Service], engine: ScriptedEngine, stream: bool, change: dict[str, Any]
) -> None:
    async def scenario() -> None:
        engine.gate = asyncio.Event()
        wire = Wire(
            create_app(make_service()), {**change.get("body", BODY), "stream": stream}, change.get("path", CHAT)
        )
        await until(lambda: engine.running > 0)
        if stream:
            await wire.first.wait()
        wire.gone.set()
        await asyncio.wait_for(wire.task, 5)
        assert engine.running == 0
        assert bool(wire.sent) == stream

    asyncio.run(scenario())


def test_work_beyond_the_limit_is_refused_and_probes_are_not(
    make_service: Callable[..., Service], engine: ScriptedEngine
) -> None:
    async def scenario() -> None:
        engine.gate = asyncio.Event()
        app = create_app(make_service(max_concurrent=1))
        held = Wire(app, BODY)
        await until(lambda: engine.running == 1)
        refused = Wire(app, BODY)
        await refused.task
        headers = dict(refused.sent[0]["headers"])
        assert refused.sent[0]["status"] == 429
        assert int(headers[b"retry-after"]) >= 1
        engine.gate.set()
        await held.task
        assert held.sent[0]["status"] == 200
        again = Wire(app, BODY)
        await again.task
        assert again.sent[0]["status"] == 200

    asyncio.run(scenario())


def test_an_answer_that_is_cut_short_says_so(make_service: Callable[..., Service], engine: ScriptedEngine) -> None:
    async def scenario() -> None:
        engine.gate = asyncio.Event()
        service = make_service()
        app = create_app(service)
        streamed, whole = Wire(app, {**BODY, "stream": True}), Wire(app, BODY)
        await until(lambda: engine.running == 2 and len(streamed.sent) > 3)
        service.stopping.set()
        await asyncio.wait_for(asyncio.gather(streamed.task, whole.task), 5)
        assert events(streamed.text)[-1]["error"]["code"] == "shutting_down"
        assert streamed.sent[-1]["more_body"] is False
        assert (whole.sent[0]["status"], json.loads(whole.text)["error"]["code"]) == (503, "shutting_down")
        assert engine.running == 0

    asyncio.run(scenario())
