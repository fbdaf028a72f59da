"""Requests with items, prepared in a worker process: as routes that are translated to llmk's own.

What a request refers to (an earlier response, a conversation, stored items) is fetched by the front end. So there are
two of each route: the first returns what a request refers to, if anything; the second gets it with the request.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmk.api import (
    AnswerHead,
    AnswerRenderer,
    ApiRoute,
    Frame,
    RequestError,
    RouteSpec,
    ServedModelInfo,
    TranslatedRequest,
)
from llmk.serve.generation.api_routes import PluginRoute
from llmk.serve.protocol.base import Body
from llmk.serve.responses import translation
from llmk.serve.responses.items import InputItem, Item
from llmk.serve.responses.mcp_client import McpTarget
from llmk.serve.responses.mcp_tools import approved, check_labels, hosted_tools, unlisted
from llmk.serve.responses.request import (
    ConversationRequest,
    ConversationUpdate,
    HistoryFields,
    InputTokensRequest,
    ItemsRequest,
    ResponseRequest,
)
from llmk.serve.responses.tools import McpTool

Json = dict[str, Any]

RESPOND, COUNT, CONVERSE, UPDATE, ADD = "responses", "input_tokens", "conversation", "conversation_update", "items"
MOST_ITEM_BYTES = 4 << 20
"""Bytes of all items that are added to a conversation at once."""
RESOLVED = ".resolved"
"""Ends the name of a route that gets a request together with what it refers to."""


class Resolved(msgspec.Struct):
    """A request with the items before its own, the ``stored`` items that it refers to, by id, and the ``listed`` tools
    of its MCP servers, by label.

    If the response has an ``output`` already, it goes on after that: ``spent`` of its tokens were generated, and with
    ``exhausted``, no more tools of servers are offered.
    """

    request: msgspec.Raw
    history: list[msgspec.Raw] = []
    stored: dict[str, msgspec.Raw] = {}
    listed: dict[str, list[Json]] = {}
    output: list[msgspec.Raw] = []
    spent: int = 0
    exhausted: bool = False


class References(msgspec.Struct, omit_defaults=True):
    """What a request refers to."""

    previous_response_id: str | None = None
    conversation: str | None = None
    items: list[str] = []
    servers: list[McpTarget] = []

    @property
    def are_stored(self) -> bool:
        """Whether it refers to what is stored."""
        return bool(self.previous_response_id or self.conversation or self.items)

    def __bool__(self) -> bool:
        return self.are_stored or bool(self.servers)


class _Route:
    """The parts of :class:`~llmk.api.ApiRoute` that are the same in all of these routes."""

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """Not used: the front end renders responses with what only it knows."""
        raise NotImplementedError

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """An error, in OpenAI's format."""
        return Frame({"error": error})

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """What the front end gets."""
        return options


class _WithHistory(_Route):
    """A route whose requests may refer to stored items."""

    def __init__(self, *, resolved: bool = False) -> None:
        self._resolved = resolved

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """The request for the model, or what it refers to."""
        request = self._request(body["request"] if self._resolved else body)
        items = translation.input_items(request)
        check_labels(request.tools)
        targets = [tool.target for tool in request.tools if isinstance(tool, McpTool)]
        named = translation.references(items)
        wanted = References(request.previous_response_id, request.conversation_id, named, targets)
        if wanted and not self._resolved:
            return TranslatedRequest("info", {}, options={"references": msgspec.to_builtins(wanted)})
        history = translation.restored(body["history"]) if self._resolved else []
        stored = body["stored"] if self._resolved else {}
        return self._translated(request, history, translation.resolved(items, stored), body if self._resolved else {})

    def _request(self, body: Any) -> HistoryFields:
        raise NotImplementedError

    def _translated(
        self, request: Any, history: Sequence[Item], items: Sequence[Item], resolved: Json
    ) -> TranslatedRequest:
        raise NotImplementedError


class Respond(_WithHistory):
    """``/v1/responses``. Its options are what the front end needs to render and store the response."""

    def _request(self, body: Any) -> HistoryFields:
        return ResponseRequest.model_validate(body)

    def _translated(
        self, request: ResponseRequest, history: Sequence[Item], items: Sequence[Item], resolved: Json
    ) -> TranslatedRequest:
        listed = resolved.get("listed", {})
        if resolved.get("output"):
            return _continued(request, history, items, resolved)
        kept = request.store or request.conversation is not None
        options = {
            "echo": {name: _text(value) for name, value in translation.echo(request).items()},
            "input": [_text(item) for item in translation.normal(items, uuid.uuid4().hex)] if kept else [],
            "encrypted": translation.wants_encrypted(request),
            "background": request.background,
            "store": request.store if "store" in request.model_fields_set else None,
            "logprobs": request.logprobs,
            "previous": request.previous_response_id,
            "conversation": request.conversation_id,
        }
        if any(isinstance(tool, McpTool) for tool in request.tools):
            options["hosted"] = {
                "tools": msgspec.to_builtins(hosted_tools(request.tools, listed)),
                "unlisted": unlisted(request.tools, [*history, *items]),
                "approved": msgspec.to_builtins(approved(items, history, request.tools)),
                "most_calls": request.max_tool_calls,
            }
        body = translation.chat_body(request, history, items, listed)
        return TranslatedRequest("chat", body, request.stream, options)


def _continued(
    request: ResponseRequest, history: Sequence[Item], items: Sequence[Item], resolved: Json
) -> TranslatedRequest:
    """The next turn of a response. What had to be called has been."""
    changes: Json = {"tool_choice": "auto"} if request.tool_choice != "none" else {}
    if resolved["exhausted"]:
        changes["tools"] = [tool for tool in request.tools if not isinstance(tool, McpTool)]
    if request.max_output_tokens is not None:
        changes["max_output_tokens"] = max(1, request.max_output_tokens - resolved["spent"])
    own = [*items, *translation.restored(resolved["output"])]
    body = translation.chat_body(request.model_copy(update=changes), history, own, resolved["listed"])
    return TranslatedRequest("chat", body, request.stream)


class CountTokens(_WithHistory):
    """``/v1/responses/input_tokens``."""

    def _request(self, body: Any) -> HistoryFields:
        return InputTokensRequest.model_validate(body)

    def _translated(
        self, request: InputTokensRequest, history: Sequence[Item], items: Sequence[Item], resolved: Json
    ) -> TranslatedRequest:
        listed = resolved.get("listed", {})
        return TranslatedRequest("tokenize", translation.tokenize_body(request, history, items, listed))

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The count, or what the request refers to."""
        return options or {"object": "response.input_tokens", "input_tokens": result["count"]}


class Check(_Route):
    """A body that needs no model: checked, and with its items as they are stored."""

    def __init__(self, schema: type[Body]) -> None:
        self._schema = schema

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """The checked body."""
        request = self._schema.model_validate(body)
        items: Sequence[InputItem] = getattr(request, "items", ())
        kept = translation.normal(translation.resolved(items, {}), uuid.uuid4().hex)
        checked = {"metadata": getattr(request, "metadata", None) or {}, "items": kept}
        if len(msgspec.json.encode(kept)) > MOST_ITEM_BYTES:
            raise RequestError(f"the items have more than {MOST_ITEM_BYTES} bytes", param="items", hint="send fewer")
        return TranslatedRequest("info", {}, options=checked)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _core_route(name: str, path: str, api: ApiRoute) -> PluginRoute:
    implementation = f"{__name__}:{type(api).__name__}"
    return PluginRoute(RouteSpec(id=name, method="POST", path=path, implementation=implementation), api)


CORE_ROUTES = {
    name: _core_route(name, path, api)
    for name, path, api in (
        (RESPOND, "/v1/responses", Respond()),
        (RESPOND + RESOLVED, "/v1/responses", Respond(resolved=True)),
        (COUNT, "/v1/responses/input_tokens", CountTokens()),
        (COUNT + RESOLVED, "/v1/responses/input_tokens", CountTokens(resolved=True)),
        (CONVERSE, "/v1/conversations", Check(ConversationRequest)),
        (UPDATE, "/v1/conversations/{id}", Check(ConversationUpdate)),
        (ADD, "/v1/conversations/{id}/items", Check(ItemsRequest)),
    )
}
"""The routes by name, which is no id of a plugin's route."""
