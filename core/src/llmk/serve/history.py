"""Requests that continue what is stored, and pages of stored items: for the routes of responses and conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw
from starlette.datastructures import QueryParams
from starlette.requests import Request

from llmk.api import RequestError
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.disconnects import while_connected
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.responses.mcp_client import McpFailed, McpTarget
from llmk.serve.responses.references import fetch
from llmk.serve.responses.request import ENCRYPTED, HOSTED_INCLUDES, LOGPROBS
from llmk.serve.responses.route import RESOLVED, References, Resolved
from llmk.serve.responses.stored import Page
from llmk.serve.service import Service, body_of
from llmk.serve.workers.prepared_request import ROUTE, Refusal, Refused, Rendered

MOST_LISTED = 100
_INCLUDES = {LOGPROBS, ENCRYPTED, *HOSTED_INCLUDES}
_OWN_NAMES = (
    (re.compile(r"^messages\b.*"), "input"),
    (re.compile(r"^tools\[(\d+)\]\.function\b"), r"tools[\1]"),
    (re.compile(r"^response_format\.json_schema\b"), "text.format"),
    (re.compile(r"^response_format\b"), "text.format"),
    (re.compile(r"^max_completion_tokens$"), "max_output_tokens"),
    (re.compile(r"^reasoning_effort$"), "reasoning.effort"),
    (re.compile(r"^verbosity$"), "text.verbosity"),
)
"""What fields of chat completions are called here."""


class _Needs(msgspec.Struct):
    references: References | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a worker ``made`` of a request, with what it refers to: in ``resolved``, its ``servers``, and why tools of
    some could not be listed, by label."""

    made: Any
    resolved: Resolved | None = None
    servers: Sequence[McpTarget] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


async def prepare(service: Service, name: str, request: Request, id: str) -> Prepared:
    """What a worker prepared of a request, together with what it refers to.

    Raises the errors of :meth:`~llmk.serve.service.Service.prepare`, and those of stored objects.
    """
    try:
        given = await body_of(request)
        made = await service.prepare(ROUTE + name, request, id, given)
        wanted = msgspec.json.decode(made.body, type=_Needs).references if isinstance(made, Rendered) else None
        if wanted is None:
            return Prepared(made)
        resolved = Resolved(Raw(given))
        if wanted.are_stored:
            limits = {"most_bytes": service.config.max_request_bytes, "most_items": service.limits.parts}
            fetching = fetch(service.storage, tenant_of(request.scope), wanted, **limits)
            found = await while_connected(fetching, request.receive, service.stopping)
            resolved.history, resolved.stored = found
        listing = _listed(service, wanted.servers)
        resolved.listed, errors = await while_connected(listing, request.receive, service.stopping)
        body = msgspec.json.encode(resolved)
        made = await service.prepare(ROUTE + name + RESOLVED, request, id, body)
        return Prepared(made, resolved, wanted.servers, errors)
    except Refusal as refusal:
        raise Refusal(_renamed(refusal.refused)) from None


async def _listed(
    service: Service, servers: Sequence[McpTarget]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """The tools of servers by label, and the errors of those that fail. Raises :class:`~llmk.api.RequestError` for a
    server that can't be used."""
    for target in servers:
        service.mcp.find(target)
    listed, errors = dict[str, list[dict[str, Any]]](), dict[str, str]()
    for target in servers:
        try:
            listed[target.label] = await service.mcp.tools(target)
        except McpFailed as error:
            errors[target.label] = error.message
    return listed, errors


def page_of(query: QueryParams) -> Page:
    """The page that a query wants. Raises :class:`~llmk.api.RequestError`."""
    check_query(query, "after", "limit", "order", "include", "include[]")
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MOST_LISTED):
        raise RequestError(f"'limit' is a number from 1 to {MOST_LISTED}, not {limit[:20]!r}", param="limit")
    if order not in ("asc", "desc"):
        raise RequestError(f"'order' is asc or desc, not {order[:20]!r}", param="order")
    return Page(query.get("after", ""), int(limit), order == "desc")


def check_query(query: QueryParams, *known: str) -> None:
    """Raises :class:`~llmk.api.RequestError` for an unknown parameter, and for an ``include`` that there is not."""
    for name, value in query.multi_items():
        if name not in known:
            raise RequestError(f"unknown parameter {name[:40]!r}; known are {', '.join(known)}", param=name[:40])
        if name in ("include", "include[]") and value not in _INCLUDES:
            raise RequestError(f"{value[:60]!r} can't be included; {', '.join(sorted(_INCLUDES))} can", param="include")


def listed(items: Sequence[Raw], ids: Sequence[str], *, has_more: bool) -> JsonResponse:
    """A page of items."""
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return JsonResponse(
        {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": has_more}
    )


def _renamed(refused: Refused) -> Refused:
    """A refusal whose fields have the names of this API."""
    error = refused.body["error"]
    param = own = error["param"]
    for pattern, name in _OWN_NAMES if param and error["code"] != "unknown_parameter" else ():
        own = pattern.sub(name, own)
    message = error["message"].replace(f"{param}:", f"{own}:", 1) if param else error["message"]
    return Refused(refused.status, {"error": {**error, "param": own, "message": message}}, refused.headers)
