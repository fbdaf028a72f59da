"""Tools of a real MCP server, called by the demo model through the official ``openai`` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_servers import ToolServer
from openai import OpenAI
from openai.types.responses import Response
from served import Served

pytestmark = pytest.mark.slow_file

QUIET: Any = {"chat_template_kwargs": {"enable_thinking": False}}
TOOL: Any = {"type": "mcp", "server_label": "test", "require_approval": "never", "allowed_tools": ["weather"]}


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tools: ToolServer) -> Iterator[Served]:
    option = f"server.mcp={json.dumps({'test': {'url': tools.url}})}"
    server = Served(tmp_path_factory.mktemp("mcp") / "log", "--port", "0", "--set", option)
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def options(served: Served) -> dict[str, Any]:
    given = {"model": served.model, "temperature": 0, "tools": [TOOL], "tool_choice": "required"}
    return {**given, "input": "What is the weather in Paris?", "max_output_tokens": 300, "extra_body": QUIET}


def test_the_demo_model_calls_a_tool(client: Any, options: dict[str, Any], tools: ToolServer) -> None:
    found = Response.model_validate(client.responses.create(**options).model_dump(mode="json"))
    calls = [item for item in found.output if item.type == "mcp_call"]
    assert calls
    assert calls[0].output
    assert "It is sunny in" in calls[0].output
    assert ("weather", json.loads(calls[0].arguments)) in tools.calls
    assert found.output[-1].type == "message"


def test_a_stream_is_put_together(client: Any, options: dict[str, Any]) -> None:
    with client.responses.stream(**options) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    assert {"response.mcp_call.in_progress", "response.mcp_call.completed"} <= set(names)
    assert "response.mcp_call_arguments.done" in names
    assert final.output[0].type == "mcp_list_tools"
