"""``/api/chat``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmk.api import AnswerHead, RequestError, ServedModelInfo, TranslatedRequest
from llmk.api.http.bodies import parse
from llmk_ollama.renderer import LineRenderer
from llmk_ollama.schema import ChatRequest, Message, Tool, ToolCall
from llmk_ollama.translation import Route, Wire, generated, loaded, options_of, thinking, timestamp


class Chat(Route):
    """A response to a conversation. Without messages, the model is loaded, which it always is."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A chat completion. Raises :class:`~llmk.api.RequestError`."""
        request = parse(ChatRequest, body)
        if not request.messages:
            return loaded(request, options_of(body))
        made: Wire = {"messages": [_message(at, message) for at, message in enumerate(request.messages)]}
        if request.tools:
            made["tools"] = [_tool(tool) for tool in request.tools]
        return TranslatedRequest(
            "chat",
            generated(request, made),
            request.stream,
            options_of(body),
            thinking=thinking(request),
            fit_max_tokens=True,
        )

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> LineRenderer:
        """The renderer of a response."""
        return LineRenderer(head.id, options, is_chat=True)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The response to a request to load the model."""
        message = {"role": "assistant", "content": ""}
        end = {"done": True, "done_reason": options["done_reason"]}
        return {"model": options["model"], "created_at": timestamp(), "message": message, **end}


def _message(at: int, message: Message) -> Wire:
    made: Wire = {"role": message.role, "content": message.content}
    for field, name, role in (
        ("thinking", "reasoning_content", "assistant"),
        ("tool_name", "name", "tool"),
        ("tool_call_id", "tool_call_id", "tool"),
        ("tool_calls", "tool_calls", "assistant"),
    ):
        if not (value := getattr(message, field)):
            continue
        if message.role != role:
            path = f"messages.{at}.{field}"
            raise RequestError(f"{path}: it belongs to messages of role {role}, not {message.role}", param=path)
        made[name] = [_call(at, call) for call in value] if field == "tool_calls" else value
    return made


def _call(at: int, call: ToolCall) -> Wire:
    try:
        arguments = json.dumps(call.function.arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        path = f"messages.{at}.tool_calls"
        raise RequestError(f"{path}: the arguments can't be written as JSON", param=path) from None
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _tool(tool: Tool) -> Wire:
    function: Wire = {"name": tool.function.name}
    function |= {"description": tool.function.description} if tool.function.description else {}
    function |= {"parameters": tool.function.parameters} if tool.function.parameters else {}
    return {"type": "function", "function": function}
