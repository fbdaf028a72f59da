"""Routes of plugins, by a small API of our own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from llmk.api import (
    AnswerDelta,
    AnswerHead,
    Frame,
    RequestError,
    RouteSpec,
    ServedModelInfo,
    TextDelta,
    TokenCounts,
    TranslatedRequest,
)
from llmk.serve.app import create_app
from llmk.serve.generation.api_routes import PluginRoute
from llmk.serve.generation.template_variables import TemplateVariables
from llmk.serve.service import Service


class Shout:
    """Renders text in upper case."""

    def __init__(self, head: AnswerHead, sign: str) -> None:
        self._head = head
        self._sign = sign
        self._said = ""

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        text = "".join(event.text for event in delta.events if isinstance(event, TextDelta))
        if text:
            yield Frame({"said": text.upper()}, event="piece")

    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        yield Frame({"sign": self._sign, "tokens": usage.completion_tokens}, event="end")

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self._said += "".join(frame.data["said"] for frame in self.frames(delta, usage))

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        return {"model": self._head.model, "said": self._said, "sign": self._sign}


class Ask:
    """One class for all kinds of routes; the body's ``what`` says which."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        if body is None:
            return TranslatedRequest("info", {})
        if body.get("what") == "break":
            raise KeyError("a mistake in the plugin")
        if "say" not in body:
            raise RequestError("'say' is missing", param="say")
        options = {"sign": body.get("sign", ""), "agent": headers.get("user-agent"), "key": headers.get("x-api-key")}
        chat = {"messages": [{"role": "user", "content": body["say"]}], **body.get("more", {})}
        if body.get("what") == "embed":
            return TranslatedRequest("embed", {"input": body["say"], **body.get("more", {})}, options=options)
        if body.get("what") == "count":
            return TranslatedRequest("tokenize", chat, options=options)
        return TranslatedRequest(
            "chat", chat, bool(body.get("stream")), options, body.get("thinking"), body.get("fit", False)
        )

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> Shout:
        return Shout(head, options["sign"])

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        if not result:
            return f"{model.name} is here"
        if "data" in result:
            vectors = [entry["embedding"] for entry in result["data"]]
            return {"vectors": vectors, "first": vectors[0][0], "tokens": result["usage"]["prompt_tokens"], **options}
        return {"count": result["count"], **options}

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        return Frame({"oops": error["message"], "field": error["param"], "id": error["request_id"]}, event="oops")


def spec(method: Any = "POST", path: str = "/ask", **more: Any) -> RouteSpec:
    return RouteSpec(id=f"test.{method}.{path}", method=method, path=path, implementation="x:Y", **more)


ROUTES = {
    route.spec.id: route
    for route in (
        PluginRoute(spec(), Ask()),
        PluginRoute(spec(path="/lines", framing="ndjson", any_content_type=True), Ask()),
        PluginRoute(spec("GET", "/state"), Ask()),
    )
}


@pytest.fixture
def client(make_service: Callable[..., Service]) -> Iterator[TestClient]:
    with TestClient(create_app(make_service(routes=ROUTES)), base_url="http://localhost") as client:
        yield client


def test_a_whole_answer(client: TestClient) -> None:
    answer = client.post("/ask", json={"say": "hi", "sign": "me"})
    assert answer.status_code == 200
    assert answer.json()["said"] == answer.json()["said"].upper() != ""
    assert answer.json()["sign"] == "me"


def test_streams_are_events_or_lines(client: TestClient) -> None:
    whole = client.post("/ask", json={"say": "hi"}).json()["said"]
    events = client.post("/ask", json={"say": "hi", "stream": True})
    assert events.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in events.text.strip().split("\n\n")]
    assert {name for name, _ in blocks} == {"event: piece", "event: end"}
    assert "".join(json.loads(data[6:]).get("said", "") for _, data in blocks) == whole
    lines = client.post("/lines", json={"say": "hi", "stream": True})
    assert lines.headers["content-type"] == "application/x-ndjson"
    pieces = [json.loads(line) for line in lines.text.splitlines()]
    assert "".join(piece.get("said", "") for piece in pieces) == whole
    assert pieces[-1]["tokens"] > 0


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/octet-stream"])
def test_json_of_any_type_is_read_where_the_api_says_so_but_not_from_pages(
    client: TestClient, kind: str | None
) -> None:
    headers = {"content-type": kind} if kind else {}
    content = b'{"say": "hi"}'
    assert client.post("/lines", content=content, headers=headers).json()["said"]
    assert client.post("/ask", content=content, headers=headers).status_code == 415
    assert client.post("/v1/completions", content=content, headers=headers).status_code == 415
    for page in ({"origin": "http://a.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert client.post("/lines", content=content, headers={**headers, **page}).status_code == 415
    typed = {"content-type": "application/json", "origin": "http://a.example"}
    assert client.post("/lines", content=content, headers=typed).status_code == 200


def test_embeddings_are_lists_of_numbers(client: TestClient) -> None:
    more = {"normalize": False, "dimensions": 2}
    body = {"say": ["hi", "you"], "what": "embed", "sign": "me", "more": more}
    answer = client.post("/ask", json=body).json()
    assert answer["vectors"] == [[ord("i"), 3.0], [ord("u"), 4.0]]
    assert (answer["first"], answer["tokens"], answer["sign"]) == (ord("i"), 7, "me")
    bad = client.post("/ask", json={**body, "more": {"dimensions": 9}})
    assert (bad.status_code, bad.json()["field"]) == (400, "dimensions")


def test_counting_and_facts_need_no_engine(client: TestClient) -> None:
    answer = client.post("/ask", json={"say": "hi", "what": "count"}, headers={"x-api-key": "secret"}).json()
    assert answer["count"] > 0
    assert (answer["agent"], answer["key"]) == ("testclient", None), "plugins get no keys"
    state = client.get("/state")
    assert state.text.endswith("is here")
    assert state.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("body", "status", "field", "message"),
    [
        ({"say": "hi", "more": {"temperature": -1}}, 400, "temperature", "temperature"),
        ({"what": "none"}, 400, "say", "'say' is missing"),
        ([], 400, None, "the body is a JSON object, not list"),
        ({"what": "break"}, 500, None, "internal error"),
        ({"say": "hi", "more": {"model": "other"}}, 404, "model", "is not served here"),
    ],
)
def test_errors_are_in_the_format_of_the_api(
    client: TestClient, body: Any, status: int, field: str | None, message: str
) -> None:
    answer = client.post("/ask", json=body)
    assert answer.status_code == status
    assert message in answer.json()["oops"]
    assert answer.json()["field"] == field
    assert len(answer.json()["id"]) == 32
    assert answer.headers["request-id"] == answer.json()["id"]


def test_errors_of_middleware_are_too(make_service: Callable[..., Service]) -> None:
    service = make_service(routes=ROUTES, api_keys=("k",))
    with TestClient(create_app(service), base_url="http://localhost") as client:
        assert "API key" in client.post("/ask", json={"say": "hi"}).json()["oops"]
        assert client.post("/ask", json={"say": "hi"}, headers={"x-api-key": "k"}).status_code == 200
        assert "takes post, not put" in client.put("/ask", json={}, headers={"x-api-key": "k"}).json()["oops"].lower()
        assert client.post("/v1/completions", json={}).json()["error"]["code"], "other routes keep their own"


def test_a_path_that_is_taken_is_left_out(
    make_service: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    routes = {"a": PluginRoute(spec("GET", "/v1/models"), Ask()), "b": PluginRoute(spec("GET", "/health"), Ask())}
    with caplog.at_level(logging.WARNING):
        client = TestClient(create_app(make_service(routes=routes)), base_url="http://localhost")
    assert client.get("/health").json() == {"status": "ok"}
    assert "there is such a route" in caplog.text


def test_a_limit_can_be_lowered_to_what_fits(client: TestClient) -> None:
    body = {"say": "hi", "more": {"max_tokens": 10**6}}
    assert "maximum context length is" in client.post("/ask", json=body).json()["oops"]
    assert client.post("/ask", json={**body, "fit": True}).status_code == 200


@pytest.mark.parametrize(
    ("source", "thinking", "options"),
    [
        ("{{ messages }}", True, {}),
        ("{{ messages }}{{ enable_thinking }}", "low", {"enable_thinking": True}),
        ("{{ messages }}{{ enable_thinking }}", False, {"enable_thinking": False}),
        ("{{ messages }}{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{{ messages }}{{ reasoning_effort }}", True, {}),
    ],
)
def test_a_wish_to_think_is_what_the_template_has_a_switch_for(
    source: str, thinking: bool | str, options: dict[str, Any]
) -> None:
    assert TemplateVariables({"default": source}).wish(thinking) == options
