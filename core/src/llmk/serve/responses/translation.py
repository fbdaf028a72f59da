"""Requests of the Responses API as bodies of chat completions, and what their responses repeat of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llmk.api import RequestError
from llmk.serve.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    Item,
    ItemReference,
    McpItem,
    MessageItem,
    ReasoningItem,
)
from llmk.serve.responses.mcp_tools import offered
from llmk.serve.responses.messages import messages_of
from llmk.serve.responses.request import ENCRYPTED, PASSED, HistoryFields, InputTokensRequest, ResponseRequest
from llmk.serve.responses.tools import chat_choice

Json = dict[str, Any]

_STORED = TypeAdapter(list[InputItem])


class NotFound(RequestError):
    """A request refers to something stored that does not exist, or is another tenant's."""

    code, http_status = "reference_not_found", 404


def input_items(request: HistoryFields) -> list[InputItem]:
    """The items of ``input``; a text is a user's message."""
    if isinstance(request.input, str):
        return [MessageItem(role="user", content=request.input)]
    return list(request.input or ())


def references(items: Iterable[InputItem]) -> list[str]:
    """The ids of stored items that ``items`` refer to."""
    return [item.id for item in items if isinstance(item, ItemReference)]


def resolved(items: Sequence[InputItem], stored: Mapping[str, Any]) -> list[Item]:
    """``items``, with references replaced by the ``stored`` items, by id. Raises :class:`NotFound`."""
    found: list[Item] = []
    for at, item in enumerate(items):
        if not isinstance(item, ItemReference):
            found.append(item)
        elif item.id in stored:
            found += restored([stored[item.id]])
        else:
            hint = "an item is stored with its response or conversation; send the item itself"
            raise NotFound(f"there is no stored item {item.id!r}", param=f"input[{at}].id", hint=hint)
    return found


def restored(stored: Sequence[Any]) -> list[Item]:
    """Items that were stored."""
    try:
        items = _STORED.validate_python(list(stored))
    except ValidationError as error:
        raise RequestError(f"a stored item can't be read: {error.errors()[0]['msg']}") from None
    return [item for item in items if not isinstance(item, ItemReference)]


def chat_body(
    request: ResponseRequest, history: Sequence[Item], items: Sequence[Item], listed: Mapping[str, Sequence[Json]]
) -> Json:
    """The body of the chat completion for ``request``, whose own items are ``items``. ``listed`` are the tools of its
    MCP servers by their labels."""
    body = _prompt_fields(request, history, items, listed)
    given = request.model_fields_set
    body |= {name: _plain(getattr(request, name)) for name in PASSED if name in given}
    if request.max_output_tokens is not None:
        body["max_completion_tokens"] = request.max_output_tokens
    if request.logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return body


def tokenize_body(
    request: InputTokensRequest, history: Sequence[Item], items: Sequence[Item], listed: Mapping[str, Sequence[Json]]
) -> Json:
    """The body of ``/tokenize`` that counts the tokens of ``request``."""
    body = _prompt_fields(request, history, items, listed)
    tools = [] if body.pop("tool_choice", "auto") == "none" else body.pop("tools", [])
    kept = ("model", "messages", "chat_template_kwargs")
    return {"tools": tools} | {name: value for name, value in body.items() if name in kept}


def _prompt_fields(
    request: HistoryFields, history: Sequence[Item], items: Sequence[Item], listed: Mapping[str, Sequence[Json]]
) -> Json:
    """The fields that both kinds of request have."""
    body: Json = {"messages": messages_of([*history, *items], request.instructions)}
    if request.model is not None:
        body["model"] = request.model
    if request.chat_template_kwargs:
        body["chat_template_kwargs"] = request.chat_template_kwargs
    if tools := offered(request.tools, listed):
        body["tools"] = tools
        body["tool_choice"] = chat_choice(request.tool_choice)
        body["parallel_tool_calls"] = request.parallel_tool_calls
    elif request.tool_choice not in ("auto", "none"):
        raise RequestError("a tool must be called, but there are no 'tools'", param="tool_choice")
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
    if request.text is not None and request.text.format is not None:
        body["response_format"] = request.text.format.chat
    if request.text is not None and request.text.verbosity is not None:
        body["verbosity"] = request.text.verbosity
    return body


def echo(request: ResponseRequest) -> Json:
    """What a response repeats of its request."""
    text = request.text
    effort = request.reasoning.effort if request.reasoning else None
    choice = request.tool_choice
    conversation = request.conversation_id
    return {
        "background": request.background,
        "conversation": {"id": conversation} if conversation else None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store,
        "text": {
            "format": text.format.shown if text and text.format else {"type": "text"},
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.shown for tool in request.tools],
        "top_logprobs": request.top_logprobs or 0,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


def wants_encrypted(request: ResponseRequest) -> bool:
    """Whether reasoning items shall have ``encrypted_content``."""
    return ENCRYPTED in request.include


def normal(items: Sequence[Item], number: str) -> list[Json]:
    """Items as they are stored and listed: with all of OpenAI's fields, and ids that have ``number``. What answers a
    request for approval among them has its new id."""
    found = [_normal(item, f"{number}i{at:04x}") for at, item in enumerate(items)]
    new = {old.id: item["id"] for old, item in zip(items, found, strict=True) if old.type == "mcp_approval_request"}
    for item in found:
        if (request := item.get("approval_request_id")) in new:
            item["approval_request_id"] = new[request]
    return found


_MCP_IDS = {
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}


def _normal(item: Item, number: str) -> Json:
    body: Json
    if isinstance(item, MessageItem):
        start, body = "msg", {"role": item.role, "content": _content(item)}
    elif isinstance(item, ReasoningItem):
        start, body = "rs", item.model_dump(exclude={"id", "type", "status"}, exclude_none=True)
    elif isinstance(item, FunctionCallItem):
        start, body = "fc", item.model_dump(exclude={"id", "type", "status"})
    elif isinstance(item, McpItem):
        start, body = _MCP_IDS[item.type], item.model_dump(exclude={"id", "type", "status"})
    else:
        start, body = "fco", {"call_id": item.call_id, "output": _function_output(item)}
    return {"id": f"{start}_{number}", "type": item.type, **body, "status": item.status or "completed"}


def _content(item: MessageItem) -> list[Json]:
    kind = "output_text" if item.role == "assistant" else "input_text"
    if isinstance(item.content, str):
        return [_part(kind, item.content)]
    return [
        {"type": "refusal", "refusal": part.refusal} if part.type == "refusal" else _part(kind, part.text)
        for part in item.content
    ]


def _part(kind: str, text: str) -> Json:
    return {"type": kind, "text": text} | ({"annotations": []} if kind == "output_text" else {})


def _function_output(item: FunctionOutputItem) -> Any:
    if isinstance(item.output, str):
        return item.output
    return [_part("input_text", part.plain) for part in item.output]


def _plain(value: Any) -> Any:
    """A field's value as JSON data."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: entry for name, entry in asdict(value).items() if entry is not None}
    return value
