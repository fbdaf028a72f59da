"""What the front end adds to the output of a model that uses tools of MCP servers, as events of a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]


class HostedTool(msgspec.Struct, frozen=True, array_like=True):
    """A tool that the front end runs: the label of its server in the request, and its own name. ``asks``: only with the
    client's approval."""

    label: str
    name: str
    asks: bool = False


class ApprovedCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that the client approved, and that has not been run."""

    request_id: str
    label: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call returned: a text, or else an error."""

    output: str | None = None
    error: Mapping[str, Any] | None = None

    @classmethod
    def failed(cls, message: str) -> ToolResult:
        """The result of a call that did not reach its tool."""
        return cls(error={"type": "http_error", "code": 502, "message": message})


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """The tools of a server have been listed; with an ``error``, they could not be."""

    label: str
    tools: Sequence[Json]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CallApproved:
    """A call that the client approved is run now, as the call with this ``index``."""

    index: int
    call: ApprovedCall


@dataclass(frozen=True, slots=True)
class CallReturned:
    """The call with this ``index`` has returned."""

    index: int
    result: ToolResult


HostedEvent = ToolsListed | CallApproved | CallReturned
