"""The Responses API over HTTP: whole, streamed, stored, continued, and in the background."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted import ScriptedEngine
from starlette.responses import Response as Plain
from starlette.testclient import TestClient

from llmk.api import EngineDead, Overloaded
from llmk.config.schema import LimitsSection, ServerSection
from llmk.config.storage_section import StorageSection
from llmk.serve.app import create_app
from llmk.serve.http.limits import Limits
from llmk.serve.responses import stored
from llmk.serve.service import Service
from llmk.serve.storage.errors import DatabaseFailed

PATH = "/v1/responses"
BODY = {"model": "org/scripted", "input": "hi"}
LOOK = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def post(client: TestClient, **change: Any) -> dict[str, Any]:
    reply = client.post(PATH, json={**BODY, **change})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    Response.model_validate(body)
    return body


def refused(client: TestClient, status: int = 400, path: str = PATH, **change: Any) -> dict[str, Any]:
    reply = client.post(path, json={**BODY, **change})
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


def frames(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENTS.validate_python(found[-1])
    return found


def stream(client: TestClient, **change: Any) -> list[dict[str, Any]]:
    reply = client.post(PATH, json={**BODY, "stream": True, **change})
    assert reply.headers["content-type"].startswith("text/event-stream")
    return frames(reply.text)


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def ended(client: TestClient, id: str) -> dict[str, Any]:
    """The background response, once it has ended."""
    due = time.monotonic() + 20
    while (found := client.get(f"{PATH}/{id}").json())["status"] in ("queued", "in_progress"):
        assert time.monotonic() < due
        time.sleep(0.01)
    return dict(found)


class Gate(asyncio.Event):
    """A gate that another thread opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    async def wait(self) -> Any:
        while not self.opened.is_set():
            await asyncio.sleep(0.005)


def test_whole(client: TestClient, engine: ScriptedEngine) -> None:
    found = post(client, instructions="Be kind.", max_output_tokens=20, metadata={"a": "b"})
    assert found["object"] == "response"
    assert found["status"] == "completed"
    assert text_of(found) == "Hello there."
    assert found["instructions"] == "Be kind."
    assert found["metadata"] == {"a": "b"}
    assert found["temperature"] == 1.0
    assert engine.calls[0].text == "<system>Be kind.<user>hi<assistant>"
    assert engine.calls[0].params.max_tokens == 20
    assert found["usage"]["output_tokens"] == len("Hello there.")
    assert found["usage"]["input_tokens_details"]["cached_tokens"] == 4


def test_what_a_client_says_of_itself_has_no_effect(client: TestClient, engine: ScriptedEngine) -> None:
    """Codex sends it with every request."""
    found = post(client, client_metadata={"session_id": "s", "turn": {"id": 1}}, prompt_cache_key="k", store=False)
    assert text_of(found) == text_of(post(client, store=False))
    assert "client_metadata" not in found
    first, second = engine.calls
    assert first.text == second.text


def test_streamed(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "(hm)Hi.[look]"
    seen = stream(client, tools=LOOK)
    whole = post(client, tools=LOOK)
    assert seen[-1]["type"] == "response.completed"
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    assert [item["type"] for item in seen[-1]["response"]["output"]] == kinds
    assert whole["usage"] == seen[-1]["response"]["usage"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_length(client: TestClient, engine: ScriptedEngine) -> None:
    engine.finish_reason = "length"
    found = post(client)
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert stream(client)[-1]["type"] == "response.incomplete"


def test_logprobs(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "(hm)Hi."
    found = post(client, top_logprobs=2)
    entries = found["output"][1]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in entries) == "Hi."
    assert len(entries[0]["top_logprobs"]) == 2
    assert "logprobs" in post(client, include=["message.output_text.logprobs"])["output"][1]["content"][0]
    assert post(client)["output"][1]["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "poem"}}]}, "tools[0].parameters"),
        ({"max_output_tokens": 4000}, "max_output_tokens"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": "x"}, "top_k"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"input": [{"role": "user", "content": "x"}] * 10_001}, "input"),
    ],
)
def test_errors_name_the_field(client: TestClient, change: dict[str, Any], param: str) -> None:
    error = refused(client, **change)
    assert error["param"] == param, error
    assert "messages[" not in error["message"]


def test_an_unknown_model(client: TestClient) -> None:
    assert refused(client, 404, model="gpt-9")["code"] == "model_not_found"


def test_an_error_while_streaming(client: TestClient, engine: ScriptedEngine) -> None:
    engine.fail = EngineDead("the engine ended")
    seen = stream(client)
    assert seen[-1]["type"] == "response.failed"
    assert seen[-1]["response"]["error"]["message"] == "the engine ended"
    assert seen[-1]["response"]["output"][0]["status"] == "incomplete"
    assert client.post(PATH, json=BODY).status_code == 503


def test_a_response_is_stored(client: TestClient) -> None:
    made = post(client, input=[{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}])
    assert client.get(f"{PATH}/{made['id']}").json() == made
    listed = client.get(f"{PATH}/{made['id']}/input_items?order=asc").json()
    for item in listed["data"]:
        ITEMS.validate_python(item)
    assert [item["content"][0]["text"] for item in listed["data"]] == ["one", "two"]
    first, second = (item["id"] for item in listed["data"])
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (first, second, False)
    page = client.get(f"{PATH}/{made['id']}/input_items?limit=1").json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([second], True)
    rest = client.get(f"{PATH}/{made['id']}/input_items?limit=1&after={second}").json()
    assert [item["id"] for item in rest["data"]] == [first]
    assert client.delete(f"{PATH}/{made['id']}").json()["deleted"] is True
    assert client.get(f"{PATH}/{made['id']}").status_code == 404
    assert client.delete(f"{PATH}/{made['id']}").status_code == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "include=moon", "colour=red", "after=msg_x"])
def test_a_page_that_is_not(client: TestClient, query: str) -> None:
    made = post(client)
    assert client.get(f"{PATH}/{made['id']}/input_items?{query}").status_code in (400, 404)


def test_not_stored(client: TestClient) -> None:
    made = post(client, store=False)
    assert made["store"] is False
    assert client.get(f"{PATH}/{made['id']}").status_code == 404


def test_a_server_that_stores_nothing(make_service: Callable[..., Service], engine: ScriptedEngine) -> None:
    service = make_service()
    service.storage.section = StorageSection(database="none")
    with TestClient(create_app(service), base_url="http://localhost") as client:
        assert post(client)["store"] is False
        assert "stores nothing" in refused(client, store=True)["message"]
        assert client.get(f"{PATH}/resp_x").status_code == 400


def test_a_response_is_continued(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "(hm)[look]"
    first = post(client, tools=LOOK, instructions="Be kind.")
    call = first["output"][1]
    engine.script = "Sunny."
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
    second = post(client, input=[output], previous_response_id=first["id"], tools=LOOK)
    assert second["previous_response_id"] == first["id"]
    expected = f"[tool look]<user>hi<assistant>hm[call look {{}}]<tool>sun{call['call_id']}<assistant>"
    assert engine.calls[-1].text == expected
    post(client, input="more", previous_response_id=second["id"])
    assert engine.calls[-1].text == expected.removeprefix("[tool look]") + "Sunny.<user>more<assistant>"
    client.delete(f"{PATH}/{first['id']}")
    error = refused(client, 404, previous_response_id=second["id"])
    assert error["param"] == "previous_response_id"
    assert f"{second['id']!r} continues" in error["message"]


def test_items_by_reference(client: TestClient, engine: ScriptedEngine) -> None:
    first = post(client)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    post(client, input=[reference, {"role": "user", "content": "and?"}])
    assert engine.calls[-1].text == "<assistant>Hello there.<user>and?<assistant>"
    for id in ("msg_x", "msg_" + "0" * 32 + "o0000"):
        error = refused(client, 404, input=[{"type": "item_reference", "id": id}])
        assert error["param"] == "input[0].id"
    assert "limit is 1000" in refused(client, input=[reference] * 1001)["message"]


def test_another_tenant_finds_nothing(serve: Callable[..., TestClient]) -> None:
    client = serve(api_keys=["one", "two"])
    mine, other = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    made = client.post(PATH, json=BODY, headers=mine).json()
    conversation = client.post("/v1/conversations", json={}, headers=mine).json()["id"]
    for path in (f"{PATH}/{made['id']}", f"{PATH}/{made['id']}/input_items", f"/v1/conversations/{conversation}"):
        assert client.get(path, headers=mine).status_code == 200
        assert client.get(path, headers=other).status_code == 404
        assert client.delete(path, headers=other).status_code in (404, 405)
    continued = [
        {"previous_response_id": made["id"]},
        {"conversation": conversation},
        {"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]},
    ]
    for change in continued:
        assert client.post(PATH, json={**BODY, **change}, headers=other).status_code == 404
        assert client.post(PATH, json={**BODY, **change}, headers=mine).status_code == 200
    for path in (f"{PATH}/{made['id']}/cancel", f"/v1/conversations/{conversation}/items"):
        assert client.post(path, json={"items": [{"role": "user", "content": "x"}]}, headers=other).status_code == 404


def test_a_conversation(client: TestClient, engine: ScriptedEngine) -> None:
    start = {"items": [{"role": "user", "content": "My name is Ann."}], "metadata": {"a": "b"}}
    made = client.post("/v1/conversations", json=start).json()
    path = f"/v1/conversations/{made['id']}"
    found = post(client, conversation=made["id"], store=False)
    assert found["conversation"] == {"id": made["id"]}
    post(client, conversation={"id": made["id"]}, input="more")
    assert engine.calls[-1].text == "<user>My name is Ann.<user>hi<assistant>Hello there.<user>more<assistant>"
    items = client.get(f"{path}/items?order=asc&limit=100").json()["data"]
    assert [item["role"] for item in items] == ["user", "user", "assistant", "user", "assistant"]
    assert items[2] == found["output"][0]
    assert client.get(f"{path}/items/{items[2]['id']}").json() == items[2]
    assert client.delete(f"{path}/items/{items[2]['id']}").json() == made
    assert client.get(f"{path}/items/{items[2]['id']}").status_code == 404
    page = client.get(f"{path}/items?limit=2").json()
    assert [item["id"] for item in page["data"]] == [items[4]["id"], items[3]["id"]]
    assert page["has_more"]
    assert client.post(path, json={"metadata": {"c": "d"}}).json()["metadata"] == {"c": "d"}
    assert client.get(path).json() == {**made, "metadata": {"c": "d"}}
    added = client.post(f"{path}/items", json={"items": [{"role": "user", "content": "x"}]}).json()
    assert added["data"][0]["id"] == added["first_id"] == added["last_id"]
    assert client.delete(path).json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    assert client.get(path).status_code == client.get(f"{path}/items").status_code == 404
    assert refused(client, 404, conversation=made["id"])["param"] == "conversation"


def test_a_response_of_a_conversation_is_continued_there(client: TestClient) -> None:
    conversation = client.post("/v1/conversations", json={}).json()["id"]
    made = post(client, conversation=conversation)
    assert "continue it with 'conversation'" in refused(client, previous_response_id=made["id"])["message"]


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("", {"items": [{"role": "user", "content": "x"}] * 21}, "20 can"),
        ("", {"metadata": {"a": "x" * 600}}, "512"),
        ("", {"colour": "red"}, "unknown field 'colour'"),
        ("/{id}/items", {"items": []}, "at least 1"),
        ("/{id}/items", {"items": [{"type": "item_reference", "id": "msg_x"}]}, "no stored item"),
        ("/{id}", {"metadata": 5}, "dict"),
        ("", {"items": [{"role": "user", "content": "x", "status": "odd"}]}, "status"),
    ],
)
def test_a_conversation_that_is_not(client: TestClient, path: str, body: Any, part: str) -> None:
    id = client.post("/v1/conversations", json={}).json()["id"]
    reply = client.post("/v1/conversations" + path.replace("{id}", id), json=body)
    assert reply.status_code in (400, 404)
    assert part in reply.json()["error"]["message"]


def test_input_tokens(client: TestClient, engine: ScriptedEngine) -> None:
    first = post(client)
    counted = client.post(f"{PATH}/input_tokens", json=BODY).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": len("<user>hi<assistant>")}
    more = client.post(f"{PATH}/input_tokens", json={**BODY, "previous_response_id": first["id"]}).json()
    assert more["input_tokens"] == len("<user>hi<assistant>Hello there.<user>hi<assistant>")


def test_in_the_background(client: TestClient, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.gate = gate
    made = post(client, background=True)
    assert made["status"] == "queued"
    running = client.get(f"{PATH}/{made['id']}").json()
    assert running["status"] == "in_progress"
    assert "still" in refused(client, previous_response_id=made["id"])["message"]
    gate.opened.set()
    found = ended(client, made["id"])
    assert found["status"] == "completed"
    assert text_of(found) == "Hello there."
    assert client.post(f"{PATH}/{made['id']}/cancel").json() == found
    post(client, previous_response_id=made["id"])
    assert "Hello there." in engine.calls[-1].text
    assert client.get(f"{PATH}/{made['id']}?stream=true").status_code == 400


def test_a_background_response_is_cancelled(client: TestClient, engine: ScriptedEngine) -> None:
    engine.gate = Gate()
    made = post(client, background=True)
    cancelled = client.post(f"{PATH}/{made['id']}/cancel").json()
    Response.model_validate(cancelled)
    assert cancelled["status"] == "cancelled"
    assert engine.running == 0
    assert client.get(f"{PATH}/{made['id']}").json() == cancelled
    made = post(client, background=True)
    assert client.delete(f"{PATH}/{made['id']}").status_code == 200
    assert engine.running == 0


def test_a_background_stream_is_followed_again(client: TestClient, engine: ScriptedEngine) -> None:
    seen = stream(client, background=True)
    assert [frame["type"] for frame in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [frame["sequence_number"] for frame in seen] == list(range(len(seen)))
    id = seen[0]["response"]["id"]
    assert ended(client, id) == seen[-1]["response"]
    assert frames(client.get(f"{PATH}/{id}?stream=true").text) == seen
    assert frames(client.get(f"{PATH}/{id}?stream=true&starting_after=4").text) == seen[5:]
    assert client.get(f"{PATH}/{id}?stream=true&starting_after=x").status_code == 400


def test_a_running_background_stream_is_followed(client: TestClient, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.gate = gate
    with client.stream("POST", PATH, json={**BODY, "background": True, "stream": True}) as reply:
        first = next(reply.iter_lines())
        assert first == "event: response.created"
    (id,) = client.app.state.service.background._runs  # type: ignore[attr-defined]
    threading.Timer(0.2, gate.opened.set).start()
    seen = frames(client.get(f"{PATH}/{id}?stream=true&starting_after=0").text)
    assert seen[0]["type"] == "response.queued"
    assert seen[-1]["type"] == "response.completed"


def test_a_background_response_that_fails(client: TestClient, engine: ScriptedEngine) -> None:
    engine.fail = EngineDead("the engine ended")
    found = ended(client, post(client, background=True)["id"])
    assert found["status"] == "failed"
    assert found["error"] == {"code": "server_error", "message": "the engine ended"}


def test_a_background_response_of_a_server_that_was_stopped(client: TestClient, engine: ScriptedEngine) -> None:
    engine.gate = Gate()
    made = post(client, background=True)
    service = client.app.state.service  # type: ignore[attr-defined]
    service.background._runs.clear()
    service.created += 100
    found = client.get(f"{PATH}/{made['id']}").json()
    Response.model_validate(found)
    assert found["status"] == "failed"
    assert "was stopped" in found["error"]["message"]


def test_too_much_in_the_background(client: TestClient, engine: ScriptedEngine, monkeypatch: Any) -> None:
    def full(num_new: int, tenant: str) -> None:
        raise Overloaded("the queue is full", retry_after=1)

    monkeypatch.setattr(engine, "check_room", full)
    assert client.post(PATH, json={**BODY, "background": True}).status_code == 429


def test_a_background_response_without_room_has_failed(client: TestClient, engine: ScriptedEngine) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    service.storage.section = StorageSection(database="memory", bytes_per_client=8000)
    engine.script = "x" * 9000
    engine.finish_reason = "length"
    found = ended(client, post(client, background=True)["id"])
    assert found["status"] == "failed"
    assert "you would store" in found["error"]["message"]
    service.storage.section = StorageSection(database="memory", bytes_per_client=30_000)
    assert ended(client, post(client, background=True)["id"])["status"] == "incomplete"
    assert ended(client, post(client, background=True)["id"])["status"] == "incomplete", "the oldest made room"


def test_a_background_response_whose_end_is_lost_has_failed(
    client: TestClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DatabaseFailed("no")

    monkeypatch.setattr("llmk.serve.responses.stored.end_response", fail)
    assert ended(client, post(client, background=True)["id"])["status"] == "failed"


def test_cancelling_twice_loses_nothing(
    client: TestClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.gate = Gate()
    end, go = stored.end_response, threading.Event()

    def slow(*given: Any) -> None:
        assert go.wait(10)
        end(*given)

    monkeypatch.setattr("llmk.serve.responses.stored.end_response", slow)
    made = post(client, background=True)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(client.post(f"{PATH}/{made['id']}/cancel").json()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    go.set()
    for thread in threads:
        thread.join()
    assert [body["status"] for body in found] == ["cancelled"] * 3
    assert client.get(f"{PATH}/{made['id']}").json()["status"] == "cancelled"


def test_what_a_request_refers_to_is_limited(client: TestClient) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    service.limits = LimitsSection(parts=5)
    first = post(client)
    second = post(client, previous_response_id=first["id"])
    third = post(client, previous_response_id=second["id"])
    error = refused(client, previous_response_id=third["id"])
    assert error["message"].startswith("the stored conversation has more than 5 items (limits.parts)")
    service.limits = LimitsSection()
    service.config = service.config.model_copy(update={"max_request_bytes": 400})
    ids = [f"{first['output'][0]['id'][:-4]}{at:04x}" for at in range(200)]
    references = [{"type": "item_reference", "id": id} for id in ids]
    assert "there is no stored item" in refused(client, 404, input=references)["message"]


def test_items_of_many_responses_are_found(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "y"
    made = [post(client) for _ in range(25)]
    ids = [response["output"][0]["id"] for response in made]
    items = [{"type": "item_reference", "id": id} for id in ids]
    post(client, input=[*items, {"role": "user", "content": "hi"}])
    assert refused(client, 404, input=[{"type": "item_reference", "id": "msg_0"}])["param"] == "input[0].id"


def test_large_responses_that_are_not_read_are_limited() -> None:
    async def scenario() -> None:
        section = ServerSection(max_buffered_bytes_per_client=3 << 20)
        sent: list[dict[str, Any]] = []
        read = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await Plain(b"x" * (2 << 20))(scope, receive, send)

        async def slow(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("more_body"):
                assert len(message["body"]) <= 256 << 10
                await read.wait()
            sent.append(message)

        limits = Limits(app, section)
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "client": ("10.0.0.1", 1), "state": {}}
        first = asyncio.create_task(limits(dict(scope), asyncio.Event().wait, slow))
        await asyncio.sleep(0.01)
        await limits(dict(scope), asyncio.Event().wait, slow)
        assert [one["status"] for one in sent if "status" in one] == [200, 429]
        assert b"responses that are not read yet" in sent[-1]["body"]
        read.set()
        await first
        assert sum(len(one.get("body", b"")) for one in sent if one is not sent[2]) >= 2 << 20
        assert not limits.buffered

    asyncio.run(scenario())


def test_bodies_count_as_long_as_responses_hold_them(client: TestClient, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.gate = gate
    limits: Any = client.app.middleware_stack  # type: ignore[attr-defined]
    while not isinstance(limits, Limits):
        limits = limits.app if hasattr(limits, "app") else limits._app
    held: list[int] = []

    def look() -> None:
        held.append(limits.buffered.total())
        gate.opened.set()

    tools = [{"type": "function", "name": "f", "description": "x" * 50_000}]
    threading.Timer(0.5, look).start()
    stream(client, tools=tools, tool_choice="none")
    assert held[0] > 50_000
    assert limits.buffered.total() == 0


def test_the_input_of_a_background_response_is_kept(client: TestClient, engine: ScriptedEngine) -> None:
    made = post(client, background=True, input="What?")
    ended(client, made["id"])
    assert "What?" in client.get(f"{PATH}/{made['id']}/input_items").text
    post(client, previous_response_id=made["id"])
    assert engine.calls[-1].text.startswith("<user>What?<assistant>Hello there.")
    tools = [{"type": "function", "name": "f", "description": "x" * (2 << 20)}]
    assert refused(client, background=True, tools=tools, tool_choice="none")["param"] == "background"


def test_only_background_responses_are_cancelled(client: TestClient) -> None:
    assert client.post(f"{PATH}/resp_x/cancel").status_code == 404
    assert "only a background" in client.post(f"{PATH}/{post(client)['id']}/cancel").json()["error"]["message"]


def test_the_oldest_responses_make_room(make_service: Callable[..., Service]) -> None:
    service = make_service()
    service.storage.section = StorageSection(database="memory", objects_per_client=6)
    with TestClient(create_app(service), base_url="http://localhost") as client:
        ids = [post(client)["id"] for _ in range(4)]
        assert client.get(f"{PATH}/{ids[0]}").status_code == 404
        assert client.get(f"{PATH}/{ids[3]}").status_code == 200


def test_a_history_has_a_limit(make_service: Callable[..., Service]) -> None:
    with TestClient(create_app(make_service(max_request_bytes=700)), base_url="http://localhost") as client:
        id = post(client)["id"]
        for _ in range(5):
            reply = client.post(PATH, json={**BODY, "previous_response_id": id})
            if reply.status_code == 400:
                break
            id = reply.json()["id"]
        assert "server.max_request_bytes" in reply.json()["error"]["message"]


def test_what_clients_send_back_of_a_call_is_taken(client: TestClient, engine: ScriptedEngine) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "async_": None, "caller": None}
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    post(client, input=[{"role": "user", "content": "hi"}, call, output])
    assert refused(client, input=[{**call, "colour": "red"}])["param"] == "input[0].colour"
    assert refused(client, input=[{**call, "arguments": 5}])["param"] == "input[0].arguments"
    assert refused(client, input=[{"type": "function_call", "name": "x"}])["param"] == "input[0].call_id"


def test_items_of_a_conversation_have_a_limit(client: TestClient) -> None:
    big = {"items": [{"role": "user", "content": "x" * (4 << 20)}]}
    assert "4194304 bytes" in client.post("/v1/conversations", json=big).json()["error"]["message"]
