"""Which clients are admitted, what is counted about them, and that all errors have one format."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.routing import APIRoute
from scripted import ScriptedEngine
from starlette.testclient import TestClient

from llmk.api import PluginError, RequestError
from llmk.config.settings import load
from llmk.serve.http import auth, error_handlers, errors
from llmk.serve.http.allowed_hosts import AllowedHosts
from llmk.serve.integrity import check_integrity
from llmk.serve.service import Service

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}
READING = (CHAT, "/v1/completions", "/tokenize", "/detokenize")
Serve = Callable[..., TestClient]


def test_metrics_and_log_stay_small_for_any_request(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = serve(api_keys=("k",))
    key = {"authorization": "Bearer k"}
    before = len(client.get("/metrics", headers=key).content)
    with caplog.at_level(logging.DEBUG):
        for number in range(500):
            long = f"{number:04}" + "x" * 20_000
            client.request(f"X{long}", "/health")
            if number % 50 == 0:
                client.get(f"/{long}", headers=key)
                client.get(f"/v1/models/{long}", headers=key)
                client.get(f"/health?{long}", headers={"x-request-id": long, "authorization": f"Bearer {long}"})
                client.post(CHAT, json={**BODY, "model": long}, headers=key)
                client.post(CHAT, json={**BODY, long: 1}, headers=key)
                client.post(CHAT, json=BODY, headers={**key, "host": long})
    ours = [record for record in caplog.records if record.name.startswith("llmk")]
    assert len(ours) >= 500
    assert max(len(record.getMessage()) for record in ours) < 1000
    assert max(len(str(vars(record))) for record in ours) < 4000
    after = client.get("/metrics", headers=key)
    assert len(after.content) < before + 5000
    assert 'method="other"' in after.text


def test_a_key_is_never_empty() -> None:
    for name in ("api_keys", "admin_keys"):
        variable = f"LLMK__SERVER__{name.upper()}"
        for text in ("", " ", "a,", '[""]', '["a b"]', '["\\u0000"]', '[" a"]'):
            with pytest.raises(Exception, match=f"server.{name}.*{variable}.*must not be empty"):
                load(environ={variable: text})
        assert getattr(load(environ={variable: "[]"}).config.server, name) == ()
        assert getattr(load(environ={variable: "a, b"}).config.server, name) == ("a", "b")


@pytest.mark.parametrize("given", ["Bearer ", "Bearer", "bearer  ", "", "Basic "])
def test_an_empty_key_opens_nothing(given: str, make_service: Callable[..., Service]) -> None:
    """However the list of keys came to hold one."""
    app = auth.ApiKeys(pytest.fail, ("", "k"))  # type: ignore[arg-type]
    response = TestClient(app).get("/v1/models", headers={"authorization": given})
    assert response.status_code == 401


def test_operators_routes_have_keys_of_any_alphabet(serve: Serve) -> None:
    client = serve(admin_keys=("sécret",))
    for key, status in (("sécret", 200), ("", 403), ("wrong", 403)):
        headers = {b"x-admin-key": key.encode()}
        assert client.get("/v1/cache/pins", headers=headers).status_code != 403 or status == 403  # type: ignore[arg-type]


OURS = ("localhost", "LOCALHOST:80", "localhost.", "127.0.0.1:8000", "[::1]:8000", "a.localhost", "10.1.2.3")
OPEN = {"host": "0.0.0.0"}


@pytest.mark.parametrize(
    ("section", "served", "refused"),
    [
        ({}, OURS, ("evil.example", "llmk", "localhost.evil.example", "127.0.0.1.evil.example", "x" * 9000)),
        (OPEN, (*OURS, "llmk", "box.local", "llmk.default.svc.cluster.local", "a.internal"), ("evil.example", "a.com")),
        ({**OPEN, "api_keys": ("k",)}, (*OURS, "api.example.com"), ()),
        ({"allowed_hosts": ("API.example.com",)}, ("api.example.com:443", "localhost"), ("10.1.2.3", "b.example.com")),
        ({"allowed_hosts": ("a.com",), "api_keys": ("k",)}, ("a.com",), ("b.com",)),
        ({"allowed_hosts": ("*",)}, (*OURS, "evil.example"), ()),
    ],
)
def test_hosts(serve: Serve, section: dict[str, Any], served: tuple[str, ...], refused: tuple[str, ...]) -> None:
    client = serve(**section)
    key = {"authorization": "Bearer k"}
    for host in served:
        assert client.get("/version", headers={**key, "host": host}).status_code == 200, host
    for host in refused:
        response = client.get("/version", headers={**key, "host": host})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (421, "unknown_host"), host
        assert "server.allowed_hosts" in error["message"]
        assert len(response.content) < 500


def test_a_page_of_another_site_gets_nothing_by_dns_rebinding(serve: Serve, engine: ScriptedEngine) -> None:
    """What a browser sends for a page of evil.example, whose name now points to 127.0.0.1."""
    client = serve()
    headers = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
    assert client.post(CHAT, json=BODY, headers=headers).status_code == 421
    # What a page may send to another site without asking has no JSON type.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        sent = client.post(CHAT, content=json.dumps(BODY), headers={"content-type": kind, "origin": "http://a.example"})
        assert sent.status_code == 415
    assert client.post(CHAT, content=json.dumps(BODY)).status_code == 415
    assert not engine.calls


def test_a_host_that_is_no_host_is_not_served() -> None:
    from llmk.config.schema import ServerSection

    hosts = AllowedHosts(pytest.fail, ServerSection())  # type: ignore[arg-type]
    for host in ("a b", "[::1", "localhost:x", "localhost:80:80", "@localhost", "localhost/x", "localhost,a.com"):
        assert not hosts.serves(host)


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", JSON, 400, "invalid_json"),
        (b'{"prompt": "\xe9"}', JSON, 400, "invalid_json"),
        (b"\xff", JSON, 400, "invalid_json"),
        (b"", JSON, 400, None),
        (b"{}", JSON, 400, None),
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"{}", {"content-type": "x" * 3000}, 415, "unsupported_media_type"),
        (b"{}", {}, 415, "unsupported_media_type"),
        (b"x", {**JSON, "content-encoding": "gzip"}, 415, "unsupported_media_type"),
        (b"x" * 300, JSON, 413, "request_too_large"),
    ],
)
def test_bodies_that_cannot_be_read_are_refused_alike(
    serve: Serve, path: str, content: bytes, headers: dict[str, str], status: int, code: str | None
) -> None:
    response = serve(max_request_bytes=200).post(path, content=content, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert error["code"] == (code or error["code"])
    assert len(response.content) < 3000
    if code is None:
        assert error["param"]
        assert error["code"] in ("missing_required_parameter", "invalid_value")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("top_p", 2), ("n", 0), ("max_tokens", -5), ("presence_penalty", 99), ("seed", 2**70)],
)
def test_values_out_of_range_have_one_code(client: TestClient, path: str, field: str, value: float) -> None:
    body = BODY if path == CHAT else {"prompt": "x"}
    response = client.post(path, json={**body, field: value})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", field)


def test_a_method_that_is_not_allowed_names_those_that_are(client: TestClient) -> None:
    for path, allowed in (("/v1/cache/pins", "GET, POST"), ("/v1/cache/pins/x", "DELETE"), (CHAT, "POST")):
        answer = client.put(path)
        assert answer.headers["allow"] == allowed
        assert answer.json()["error"]["message"] == f"{path} takes {allowed}, not PUT"


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/models/", "/models"])
def test_the_base_url_in_a_browser_names_a_route(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"there is no route GET {path}; did you mean /v1/models?"


@pytest.mark.parametrize("body", [[], "x", 1])
def test_a_body_that_is_no_object_is_refused_with_its_form(client: TestClient, body: Any) -> None:
    error = client.post(CHAT, json=body).json()["error"]
    assert (error["message"], error["code"]) == ("the body must be a JSON object: {...}", "invalid_type")


USER = {"messages": [{"role": "user", "content": "hi"}]}
FLAT = {"tools": [{"type": "function", "name": "x"}]}
NO_SCHEMA = {"response_format": {"type": "json_schema"}}


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (CHAT, {"prompt": "hi"}, "prompt", "a chat has 'messages'"),
        ("/v1/completions", USER, "messages", "POST /v1/chat/completions takes them"),
        (CHAT, USER | FLAT, "tools[0].name", '"function": {"name"'),
        (CHAT, USER | NO_SCHEMA, "response_format.json_schema", "needs one"),
    ],
)
def test_errors_say_where_a_field_belongs(
    client: TestClient, path: str, body: dict[str, Any], param: str, message: str
) -> None:
    error = client.post(path, json=body).json()["error"]
    assert error["param"] == param
    assert message in error["message"], error


def test_texts_of_errors_have_a_bound() -> None:
    status, body, _ = errors.describe(RequestError("x" * 10**6 + "\ud800", param="y" * 10**6))
    assert status == 400
    assert len(json.dumps(body)) < 3000


def test_all_errors_have_one_format(serve: Serve) -> None:
    client = serve(api_keys=("k",))
    key = {"authorization": "Bearer k"}
    for response, status, code in (
        (client.get("/v1/models"), 401, "invalid_api_key"),
        (client.get("/nowhere", headers=key), 404, "not_found"),
        (client.get("/v1/models/x", headers=key), 404, "model_not_found"),
        (client.post(CHAT, json={**BODY, "model": "x"}, headers=key), 404, "model_not_found"),
        (client.get(CHAT, headers=key), 405, "method_not_allowed"),
        (client.get("/v1/cache/pins", headers=key), 403, "forbidden"),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "param", "code"}
        assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/images/generations", "GET /openapi.json lists the routes"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/" + "x" * 9_000, "GET /openapi.json lists the routes"),
    ],
)
def test_the_error_of_an_unknown_path_names_the_route_that_may_be_meant(
    client: TestClient, path: str, hint: str
) -> None:
    error = client.post(path, json={}).json()["error"]
    assert error["code"] == "not_found"
    assert error["message"].startswith(f"there is no route POST {path[:100]}")
    assert hint in error["message"]


def test_models_reveal_no_paths_of_files(client: TestClient) -> None:
    known = {"id", "object", "created", "owned_by", "max_model_len", "capabilities"}
    assert set(client.get("/v1/models").json()["data"][0]) == known


def test_the_docs_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    links = [part.split('"')[0] for part in page.text.replace("'", '"').split('="')[1:]]
    links = [link for link in links if "/" in link and not link.startswith("text/")]
    assert len(links) >= 2
    for link in links:
        assert link.startswith("/"), link
        assert client.get(link).status_code == 200
    assert "://" not in page.text
    assert client.get("/redoc").status_code == 404


def test_the_document_has_responses_errors_and_keys(serve: Serve) -> None:
    client = serve(api_keys=("k",))
    document = client.get("/openapi.json", headers={"authorization": "Bearer k"}).json()
    routes = [route for route in client.app.routes if isinstance(route, APIRoute) and route.include_in_schema]  # type: ignore[attr-defined]
    assert routes or document["paths"]
    assert set(document["components"]["securitySchemes"]) == {"admin", "key"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "200" in operation["responses"]
            assert "422" not in operation["responses"]
            assert {"421", "503"} <= set(operation["responses"])
            assert operation["security"] == ([] if path == "/health" else operation["security"])


def test_a_guard_that_was_replaced_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_integrity()

    async def everybody(*args: Any) -> None:
        """What a plugin may put in the place of a check."""

    checks = ((auth.ApiKeys, "__call__"), (auth, "_digest"), (auth, "ApiKeys"), (error_handlers.Refused, "__init__"))
    for owner, name in checks:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, everybody)
            with pytest.raises(PluginError, match=rf"{name}.*test_door\.py"):
                check_integrity()
    check_integrity()
