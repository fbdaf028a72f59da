"""Responses of several turns: the model calls tools of MCP servers, and goes on with what they return."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from starlette.types import Scope

from llmk.api import LlmkError, RequestError, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk.serve.generation.choice_deltas import ChoiceDelta, Job, Usage
from llmk.serve.responses.hosted import (
    ApprovedCall,
    CallApproved,
    CallReturned,
    HostedEvent,
    HostedTool,
    ToolResult,
    ToolsListed,
)
from llmk.serve.responses.mcp_client import McpFailed, McpTarget
from llmk.serve.responses.renderer import ResponseRenderer
from llmk.serve.responses.route import RESOLVED, RESPOND, Resolved
from llmk.serve.service import Service
from llmk.serve.streaming import deltas_of
from llmk.serve.workers.prepared_request import ROUTE, Generation, Refused, Work

if TYPE_CHECKING:
    from llmk.engine.wire.request import RequestContext

_TOO_MANY = "this call was not made: the response has made as many as it may ('max_tool_calls', limits.mcp_calls)"


class HostedTurns:
    """Runs the turns of one response.

    ``options`` are those of the request's tools; ``resolved`` is the request, ``errors`` why tools of servers could not
    be listed, by label.
    """

    def __init__(
        self,
        service: Service,
        made: Generation,
        renderer: ResponseRenderer,
        resolved: Resolved,
        targets: Sequence[McpTarget],
        errors: Mapping[str, str],
    ) -> None:
        options = made.options["hosted"]
        self._service = service
        self._made = made
        self._renderer = renderer
        self._resolved = resolved
        self._errors = errors
        self._targets = {target.label: target for target in targets}
        self._tools = msgspec.convert(options["tools"], dict[str, HostedTool])
        self._unlisted: list[str] = options["unlisted"]
        self._approved = msgspec.convert(options["approved"], list[ApprovedCall])
        self._left = min(options["most_calls"] or service.limits.mcp_calls, service.limits.mcp_calls)

    async def deltas(self, usage: Usage, scope: Scope) -> AsyncGenerator[ChoiceDelta, None]:
        """The output of all turns, counted in ``usage``."""
        job = self._made.job()
        self._service.engine.check_room(job.params.n, job.context.tenant)  # before anything is sent or called
        for label in self._unlisted:
            yield _delta(ToolsListed(label, self._resolved.listed.get(label, ()), self._errors.get(label)))
        for at, call in enumerate(self._approved):
            yield _delta(CallApproved(at, call))
            yield _delta(CallReturned(at, await self._run(HostedTool(call.label, call.name), call.arguments)))
        if self._approved:
            job = await self._next(usage)
        while True:
            turn, held = _Turn(self._tools), None
            async with aclosing(self._one(job, usage, scope)) as deltas:
                async for delta in deltas:
                    turn.follow(delta.events)
                    if delta.finish_reason is not None and turn.calls:
                        held, delta = delta, replace(delta, finish_reason=None)
                    yield delta
            if held is None:
                return
            if held.finish_reason == "tool_calls":
                for index, (tool, arguments) in turn.calls.items():
                    yield _delta(CallReturned(index, await self._run(tool, arguments)))
            if held.finish_reason != "tool_calls" or turn.waits or self._resolved.exhausted:
                yield ChoiceDelta(0, (), finish_reason=held.finish_reason, stop_reason=held.stop_reason)
                return
            job = await self._next(usage)

    async def _one(self, job: Job, usage: Usage, scope: Scope) -> AsyncGenerator[ChoiceDelta, None]:
        """The output of one turn, whose tokens are added to those before it."""
        part, before = Usage(), replace(usage)
        async with aclosing(deltas_of(self._service, job, part, scope)) as deltas:
            async for delta in deltas:
                for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"):
                    setattr(usage, name, getattr(before, name) + getattr(part, name))
                yield delta

    async def _run(self, tool: HostedTool, arguments: str) -> ToolResult:
        """Calls a tool. What fails is the call alone."""
        if self._left <= 0:
            return ToolResult.failed(_TOO_MANY)
        self._left -= 1
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return ToolResult.failed(f"the arguments are not JSON: {error}")
        if not isinstance(given, dict):
            return ToolResult.failed("the arguments are no JSON object")
        try:
            text, failed = await self._service.mcp.call(self._targets[tool.label], tool.name, given)
        except (McpFailed, RequestError) as error:
            return ToolResult.failed(error.message)
        if failed:
            return ToolResult(error={"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]})
        return ToolResult(text)

    async def _next(self, usage: Usage) -> Job:
        """The next turn, after what the response has so far. Raises :class:`~llmk.api.RequestError`, such as for a
        conversation that has become too long."""
        self._resolved.output = [Raw(msgspec.json.encode(item)) for item in self._renderer.output]
        self._resolved.spent, self._resolved.exhausted = usage.completion_tokens, self._left <= 0
        context: RequestContext = self._made.context
        info = msgspec.structs.replace(self._service.engine.info, plan={}, pickled_plan=b"")
        work = Work(ROUTE + RESPOND + RESOLVED, context, info, ignores=self._service.config.unknown_fields == "warn")
        prepared = await self._service.workers.prepare(work, msgspec.json.encode(self._resolved))
        if isinstance(prepared, Refused):
            error = prepared.body["error"]
            raise RequestError(error["message"], param=error["param"])
        if not isinstance(prepared, Generation):
            raise LlmkError("a response could not go on after the calls of its tools")
        return prepared.job()


class _Turn:
    """The calls of one turn. ``waits``: some are the client's, to be made or approved."""

    def __init__(self, tools: Mapping[str, HostedTool]) -> None:
        self._tools = tools
        self._open: dict[int, tuple[HostedTool, list[str]]] = {}
        self.calls: dict[int, tuple[HostedTool, str]] = {}
        self.waits = False

    def follow(self, events: Sequence[Any]) -> None:
        """Takes note of events."""
        for event in events:
            if isinstance(event, ToolCallStart):
                tool = self._tools.get(event.name)
                if tool is None or tool.asks:
                    self.waits = True
                else:
                    self._open[event.index] = tool, []
            elif isinstance(event, ToolCallArguments) and event.index in self._open:
                self._open[event.index][1].append(event.text)
            elif isinstance(event, ToolCallFailed):
                self._open.pop(event.index, None)
            elif isinstance(event, ToolCallEnd) and event.index in self._open:
                tool, pieces = self._open.pop(event.index)
                self.calls[event.index] = tool, "".join(pieces)


def _delta(event: HostedEvent) -> ChoiceDelta:
    """An event of the front end, as a part of the output."""
    events: Any = (event,)
    return ChoiceDelta(0, events)
