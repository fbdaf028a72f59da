"""Tools of a real MCP server in responses, with a scripted model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted import ScriptedEngine
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "support"))

from mcp_servers import ToolServer

from llmk.config.mcp_server import McpServer
from llmk.serve.app import create_app
from llmk.serve.service import Service

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture
def client(make_service: Callable[..., Service], tools: ToolServer) -> Iterator[TestClient]:
    tools.calls.clear()
    tools.headers.clear()
    servers = {
        "test": McpServer(url=tools.url, headers={"X-Key": "secret"}, seconds=10),
        "hasty": McpServer(url=tools.url, headers={"X-Key": "secret"}, seconds=2),
        "dead": McpServer(url="http://127.0.0.1:9/mcp", seconds=2),
    }
    with TestClient(create_app(make_service(mcp=servers)), base_url="http://localhost") as client:
        yield client


def tool(*allowed: str, **more: Any) -> dict[str, Any]:
    found = {"type": "mcp", "server_label": "test", "require_approval": "never", **more}
    return {**found, "allowed_tools": list(allowed)} if allowed else found


def post(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json={"input": "hi", **body})
    assert response.status_code == 200, response.text
    Response.model_validate(response.json())
    return dict(response.json())


def events(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post(PATH, json={"input": "hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    found = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    for event in found:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_tools_are_listed_once_for_several_requests(
    client: TestClient, engine: ScriptedEngine, tools: ToolServer
) -> None:
    engine.scripts = ["One.", "Two."]
    post(client, tools=[tool()])
    first = len(tools.headers)
    post(client, tools=[tool()])
    assert len(tools.headers) == first > 0


def test_the_model_goes_on_after_its_calls(client: TestClient, engine: ScriptedEngine, tools: ToolServer) -> None:
    engine.scripts = ["(hm)[look]", "[look]", "I see a tree."]
    found = post(client, tools=[tool("look")])
    assert found["status"] == "completed"
    assert kinds(found) == ["mcp_list_tools", "reasoning", "mcp_call", "mcp_call", "message"]
    listed, _, call, _, message = found["output"]
    assert {entry["name"] for entry in listed["tools"]} == {"look", "weather", "breaks", "slow", "large"}
    assert (call["name"], call["server_label"], call["output"]) == ("look", "test", "a tree")
    assert (call["status"], call["error"], call["arguments"]) == ("completed", None, "{}")
    assert message["content"][0]["text"] == "I see a tree."
    assert tools.calls == [("look", {})] * 2
    assert "a tree" in engine.calls[1].text
    assert engine.calls[2].text.count("a tree") == 2
    assert "weather" not in engine.calls[0].text
    assert found["usage"]["input_tokens"] == sum(len(call.prompt) for call in engine.calls)
    assert found["usage"]["output_tokens"] == len("(hm)[look][look]I see a tree.")
    assert all(headers["x-key"] == "secret" for headers in tools.headers)


def test_a_stream_has_all_events(client: TestClient, engine: ScriptedEngine) -> None:
    engine.scripts = ["[look]", "A tree."] * 2
    seen = events(client, tools=[tool("look")])
    names = [event["type"].removeprefix("response.") for event in seen]
    assert names[:11] == [
        *("created", "in_progress", "output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed"),
        *("output_item.done", "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"),
        *("mcp_call_arguments.done", "mcp_call.completed"),
    ]
    assert names[-1] == "completed"
    whole = post(client, tools=[tool("look")])
    assert kinds(whole) == kinds(seen[-1]["response"])
    assert whole["usage"] == seen[-1]["response"]["usage"]
    done = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
    assert done == seen[-1]["response"]["output"]


@pytest.mark.parametrize(
    ("server", "name", "error"),
    [
        ("test", "breaks", "Error executing tool breaks"),
        ("hasty", "slow", "longer than 2 s"),
        ("test", "large", "limits.mcp_bytes"),
    ],
)
def test_what_fails_is_the_call_alone(
    client: TestClient, engine: ScriptedEngine, server: str, name: str, error: str
) -> None:
    engine.scripts = [f"[{name}]", "Well."]
    seen = events(client, tools=[tool(name, server_label=server)])
    call = seen[-1]["response"]["output"][1]
    assert (call["status"], call["output"]) == ("failed", None)
    assert error in json.dumps(call["error"])
    assert "response.mcp_call.failed" in [event["type"] for event in seen]
    assert "Error: " in engine.calls[1].text
    assert kinds(seen[-1]["response"])[-1] == "message"


def test_a_dead_server_offers_nothing(client: TestClient, engine: ScriptedEngine) -> None:
    seen = events(client, tools=[tool(server_label="dead")])
    (listed, message) = seen[-1]["response"]["output"]
    assert "dead" in listed["error"]
    assert "response.mcp_list_tools.failed" in [event["type"] for event in seen]
    assert message["type"] == "message"


def test_calls_are_counted(client: TestClient, engine: ScriptedEngine, tools: ToolServer) -> None:
    engine.scripts = ["[look]", "[look][look]", "[look]"]
    found = post(client, tools=[tool("look")], max_tool_calls=2)
    assert len(tools.calls) == 2
    assert [item["status"] for item in found["output"] if item["type"] == "mcp_call"] == ["completed"] * 2 + ["failed"]
    assert "[tool look]" not in engine.calls[2].text, "no tool is offered any more"


def test_tokens_are_limited_over_all_turns(client: TestClient, engine: ScriptedEngine) -> None:
    engine.scripts = ["[look]", "A tree."]
    post(client, tools=[tool("look")], max_output_tokens=50)
    assert [call.params.max_tokens for call in engine.calls] == [50, 44]


def test_functions_of_the_client_end_the_response(
    client: TestClient, engine: ScriptedEngine, tools: ToolServer
) -> None:
    engine.scripts = ["[look][paint]"]
    found = post(client, tools=[tool("look"), {"type": "function", "name": "paint", "parameters": {"type": "object"}}])
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert tools.calls == [("look", {})]
    output = {"type": "function_call_output", "call_id": found["output"][2]["call_id"], "output": "painted"}
    engine.scripts = ["Done."]
    again = post(client, tools=[tool("look")], previous_response_id=found["id"], input=[output])
    assert kinds(again) == ["message"], "its tools are known from the response before"
    assert "a tree" in engine.calls[-1].text
    assert "painted" in engine.calls[-1].text


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_calls_wait_for_approval(
    client: TestClient, engine: ScriptedEngine, tools: ToolServer, approve: bool, stored: bool
) -> None:
    engine.scripts = ["[look]"]
    asking = [tool("look", require_approval="always")]
    found = post(client, tools=asking)
    assert kinds(found) == ["mcp_list_tools", "mcp_approval_request"]
    assert tools.calls == []
    request = found["output"][1]
    assert (request["name"], request["arguments"]) == ("look", "{}")
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
    given: dict[str, Any] = {"previous_response_id": found["id"], "input": [answer]}
    if not stored:
        given = {"input": [{"role": "user", "content": "hi"}, *found["output"], answer]}
    engine.scripts = ["So."]
    seen = events(client, tools=asking, **given)
    last = seen[-1]["response"]
    if approve:
        assert kinds(last) == ["mcp_call", "message"]
        assert last["output"][0]["approval_request_id"] == request["id"]
        assert tools.calls == [("look", {})]
        assert "a tree" in engine.calls[-1].text
    else:
        assert kinds(last) == ["message"]
        assert tools.calls == []
        assert "did not approve" in engine.calls[-1].text
    engine.scripts = ["And so on."]
    assert kinds(post(client, tools=asking, previous_response_id=last["id"])) == ["message"]
    assert len(tools.calls) == approve, "a call is made once"


def test_items_of_clients_are_stored_under_new_ids(client: TestClient, engine: ScriptedEngine) -> None:
    """So that no client can take an id of another's."""
    asked = {
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "test", "name": "look", "arguments": "{}",
    }  # fmt: skip
    denied = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False}
    conversation = client.post("/v1/conversations", json={}).json()["id"]
    for _ in range(2):
        post(client, tools=[tool("look")], input=[asked, denied], conversation=conversation)
        assert "did not approve" in engine.calls[-1].text
    items = client.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()["data"]
    requests = [item["id"] for item in items if item["type"] == "mcp_approval_request"]
    answered = [item["approval_request_id"] for item in items if item["type"] == "mcp_approval_response"]
    assert requests == answered
    assert len(set(requests)) == 2


def test_approval_by_name(client: TestClient, engine: ScriptedEngine) -> None:
    never = {"never": {"tool_names": ["look"]}}
    engine.scripts = ["[look]", "[breaks]"]
    found = post(client, tools=[tool("look", "breaks", require_approval=never)])
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]


def test_in_the_background(client: TestClient, engine: ScriptedEngine, tools: ToolServer) -> None:
    engine.scripts = ["[look]", "A tree."]
    id = post(client, tools=[tool("look")], background=True)["id"]
    due = time.monotonic() + 20
    while (found := client.get(f"{PATH}/{id}").json())["status"] in ("queued", "in_progress"):
        assert time.monotonic() < due
        time.sleep(0.01)
    assert found["status"] == "completed"
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]


def test_a_background_response_is_cancelled_in_a_call(client: TestClient, engine: ScriptedEngine) -> None:
    engine.scripts = ["[slow]", "Late."]
    id = post(client, tools=[tool("slow")], background=True)["id"]
    due = time.monotonic() + 20
    while not engine.calls or engine.running:
        assert time.monotonic() < due
        time.sleep(0.01)
    found = client.post(f"{PATH}/{id}/cancel").json()
    assert found["status"] == "cancelled"
    assert len(engine.calls) == 1
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([tool(server_label="home")], "the MCP server 'home' is not one that this server may call"),
        ([tool(server_url="http://169.254.169.254/")], "at 'http://169.254.169.254/' is not one"),
        ([tool(server_label="a", server_url="file:///etc/passwd")], "is not one that this server may call"),
        ([tool(headers={"host": "x"})], "the header 'host' can't be sent to 'test'"),
        ([tool("look"), tool("look")], "have the server_label 'test'"),
        ([tool("look"), {"type": "function", "name": "look"}], "two tools are called 'look'"),
    ],
)
def test_what_is_refused(
    client: TestClient, engine: ScriptedEngine, tools: ToolServer, given: Any, message: str
) -> None:
    response = client.post(PATH, json={"input": "hi", "tools": given})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert engine.calls == []


def test_an_approval_of_nothing_is_refused(client: TestClient, tools: ToolServer) -> None:
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    response = client.post(PATH, json={"input": [answer], "tools": [tool("look")]})
    assert response.status_code == 400
    assert "there is no mcp_approval_request 'mcpr_1'" in response.json()["error"]["message"]
    forged = {
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "test", "name": "weather", "arguments": "{}",
    }  # fmt: skip
    response = client.post(PATH, json={"input": [forged, answer], "tools": [tool("look")]})
    assert response.status_code == 400
    assert "is not one of 'tools'" in response.json()["error"]["message"]
    assert tools.calls == []


def test_authorization_is_passed_on_and_not_shown(
    client: TestClient, engine: ScriptedEngine, tools: ToolServer
) -> None:
    engine.scripts = ["[look]", "A tree."]
    found = post(client, tools=[tool("look", authorization="token")])
    assert "token" not in json.dumps(found["tools"])
    assert {headers["authorization"] for headers in tools.headers} == {"Bearer token"}


def test_a_server_is_found_by_its_url(client: TestClient, engine: ScriptedEngine, tools: ToolServer) -> None:
    engine.scripts = ["[look]", "A tree."]
    found = post(client, tools=[tool("look", server_label="mine", server_url=tools.url + "/")])
    assert found["output"][1]["server_label"] == "mine"
    assert found["output"][1]["output"] == "a tree"


def test_tokens_of_tools_are_counted(client: TestClient) -> None:
    without = client.post(f"{PATH}/input_tokens", json={"input": "hi"}).json()["input_tokens"]
    found = client.post(f"{PATH}/input_tokens", json={"input": "hi", "tools": [tool("look")]})
    assert found.json()["input_tokens"] > without
