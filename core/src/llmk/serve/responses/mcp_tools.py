"""Tools of MCP servers, as the model gets to know them, and calls that a client approved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmk.api import RequestError
from llmk.serve.protocol.tool_schema import fault
from llmk.serve.responses.hosted import ApprovedCall, HostedTool
from llmk.serve.responses.items import Item, McpApprovalRequestItem, McpApprovalResponseItem, McpCallItem, McpListItem
from llmk.serve.responses.tools import FunctionTool, McpTool

Json = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LONGEST_DESCRIPTION = 4096
"""Characters."""


def offered(tools: Sequence[FunctionTool | McpTool], listed: Mapping[str, Sequence[Json]]) -> list[Json]:
    """The tools of a chat completion: functions, and those of the servers' ``listed`` tools that may be called."""
    found = [tool.chat for tool in tools if isinstance(tool, FunctionTool)]
    return found + [_function(tool) for server in _servers(tools) for tool in _allowed(server, listed)]


def hosted_tools(
    tools: Sequence[FunctionTool | McpTool], listed: Mapping[str, Sequence[Json]]
) -> dict[str, HostedTool]:
    """The tools of servers by the names that the model knows.

    Raises:
        RequestError: if two tools have the same name.
    """
    found: dict[str, HostedTool] = {}
    functions = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
    for server in _servers(tools):
        for tool in _allowed(server, listed):
            name = tool["name"]
            if name in found or name in functions:
                hint = "leave one of them out by 'allowed_tools'"
                raise RequestError(f"two tools are called {name!r}", param="tools", hint=hint)
            found[name] = HostedTool(server.server_label, name, server.asks(name))
    return found


def check_labels(tools: Sequence[FunctionTool | McpTool]) -> None:
    """Raises :class:`~llmk.api.RequestError` if two servers have the same label."""
    labels = [server.server_label for server in _servers(tools)]
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise RequestError(f"two entries of 'tools' have the server_label {label!r}", param="tools")


def unlisted(tools: Sequence[FunctionTool | McpTool], items: Sequence[Item]) -> list[str]:
    """The labels of servers whose tools the conversation doesn't have yet."""
    known = {item.server_label for item in items if isinstance(item, McpListItem) and item.error is None}
    return [server.server_label for server in _servers(tools) if server.server_label not in known]


def approved(
    items: Sequence[Item], history: Sequence[Item], tools: Sequence[FunctionTool | McpTool]
) -> list[ApprovedCall]:
    """The calls that ``items`` approve, and that have not been run. Each must be of a server of the request.

    Raises:
        RequestError: for an approval of a request that there is not.
    """
    asked = {item.id: item for item in (*history, *items) if isinstance(item, McpApprovalRequestItem)}
    done = {item.approval_request_id for item in (*history, *items) if isinstance(item, McpCallItem)}
    servers = {server.server_label: server for server in _servers(tools)}
    found: list[ApprovedCall] = []
    for at, item in enumerate(items):
        if not isinstance(item, McpApprovalResponseItem) or item.approval_request_id in done:
            continue
        param, request = f"input[{at}]", asked.get(item.approval_request_id)
        if request is None:
            hint = "send the item, or 'previous_response_id'"
            what = f"there is no mcp_approval_request {item.approval_request_id!r}"
            raise RequestError(what, param=f"{param}.approval_request_id", hint=hint)
        if not item.approve:
            continue
        server = servers.get(request.server_label)
        if server is None or not server.allows(request.name):
            what = f"the tool {request.name[:80]!r} of {request.server_label[:80]!r} is not one of 'tools'"
            raise RequestError(what, param=param)
        done.add(request.id)
        found.append(ApprovedCall(request.id, request.server_label, request.name, request.arguments))
    return found


def _servers(tools: Sequence[FunctionTool | McpTool]) -> Iterator[McpTool]:
    return (tool for tool in tools if isinstance(tool, McpTool))


def _allowed(server: McpTool, listed: Mapping[str, Sequence[Json]]) -> Iterator[Json]:
    """A server's tools that may be called. A name that is no name of a function can't be."""
    for tool in listed.get(server.server_label, ()):
        name = tool.get("name")
        if isinstance(name, str) and _NAME.fullmatch(name) and server.allows(name):
            yield tool


def _function(tool: Json) -> Json:
    schema = tool.get("inputSchema")
    function: Json = {"name": tool["name"]}
    if description := str(tool.get("description") or "")[:_LONGEST_DESCRIPTION]:
        function["description"] = description
    if isinstance(schema, dict) and fault(schema) is None:
        function["parameters"] = schema
    return {"type": "function", "function": function}
