"""Output items of tools of MCP servers that are being written."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.serve.responses.hosted import HostedTool, ToolResult, ToolsListed
from llmk.serve.responses.open_items import Entries, Json, OpenItem


class OpenListing(OpenItem):
    """The list of a server's tools."""

    def __init__(self, id: str, output_index: int, listed: ToolsListed) -> None:
        super().__init__(id, output_index)
        self._listed = listed

    def item(self, status: str) -> Json:
        """The list, which is empty until it is done."""
        done = status != "in_progress"
        return {
            "id": self.id,
            "type": "mcp_list_tools",
            "server_label": self._listed.label,
            "tools": [_shown(tool) for tool in self._listed.tools] if done else [],
            "error": self._listed.error if done else None,
        }

    def opened(self) -> Iterator[Json]:
        """The events with which the item starts."""
        yield from super().opened()
        yield self._event("response.mcp_list_tools.in_progress")

    def _ended(self) -> Iterator[Json]:
        yield self._event("response.mcp_list_tools." + ("failed" if self._listed.error else "completed"))


class OpenToolCall(OpenItem):
    """A call of a tool, which is done when its server has returned."""

    def __init__(self, id: str, output_index: int, tool: HostedTool, approval: str | None = None) -> None:
        super().__init__(id, output_index)
        self._tool = tool
        self._approval = approval
        self._result = ToolResult()

    def item(self, status: str) -> Json:
        """The call with its arguments so far, and what it returned."""
        return {
            "id": self.id,
            "type": "mcp_call",
            "status": status,
            "approval_request_id": self._approval,
            "arguments": self.text,
            "error": self._result.error,
            "name": self._tool.name,
            "output": self._result.output,
            "server_label": self._tool.label,
        }

    def opened(self) -> Iterator[Json]:
        """The events with which the item starts."""
        yield from super().opened()
        yield self._event("response.mcp_call.in_progress")

    def added(self, text: str, logprobs: Entries | None = None) -> Iterator[Json]:
        """The event of a piece of the arguments."""
        self._pieces.append(text)
        yield self._event("response.mcp_call_arguments.delta", delta=text)

    def written(self) -> Iterator[Json]:
        """The event after the last piece."""
        yield self._event("response.mcp_call_arguments.done", arguments=self.text)

    def returned(self, result: ToolResult) -> Iterator[Json]:
        """The events with which the item ends."""
        self._result = result
        yield from self.done("failed" if result.error else "completed")

    def _ended(self) -> Iterator[Json]:
        if self._result != ToolResult():
            yield self._event("response.mcp_call." + ("failed" if self._result.error else "completed"))


class OpenApproval(OpenItem):
    """A call that is not run before the client approves it. It has no events but those of all items."""

    def __init__(self, id: str, output_index: int, tool: HostedTool) -> None:
        super().__init__(id, output_index)
        self._tool = tool

    def item(self, status: str) -> Json:
        """The request for approval."""
        return {
            "id": self.id,
            "type": "mcp_approval_request",
            "arguments": self.text,
            "name": self._tool.name,
            "server_label": self._tool.label,
        }

    def added(self, text: str, logprobs: Entries | None = None) -> Iterator[Json]:
        """Keeps a piece of the arguments."""
        self._pieces.append(text)
        yield from ()

    def _ended(self) -> Iterator[Json]:
        yield from ()


def _shown(tool: Json) -> Json:
    """A tool as a response has it."""
    return {
        "name": tool["name"],
        "description": tool.get("description"),
        "input_schema": tool.get("inputSchema") or {"type": "object"},
        "annotations": tool.get("annotations"),
    }
