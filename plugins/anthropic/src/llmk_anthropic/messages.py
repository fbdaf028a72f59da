"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmk.api import AnswerHead, Frame, RequestError, ServedModelInfo, TranslatedRequest
from llmk.api.http.bodies import parse
from llmk_anthropic.caching import cached_prefixes
from llmk_anthropic.conversation import is_continued, offered_tools, openai_messages
from llmk_anthropic.renderer import MessageRenderer
from llmk_anthropic.schema import CountRequest, MessagesRequest
from llmk_anthropic.tools import Tool, ToolChoice

Wire = dict[str, Any]

_ERRORS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""By this, the tool runners of the official clients, whose conversations the server should keep, learn that they must
send all messages (``message-threads-2026-08-12``)."""
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_OTHERS_MODELS = "claude-"
"""How the models' names start that agents request unless they are configured; the served model replaces them."""
_SAME = ("temperature", "top_p", "top_k", "unenforceable")


class _Route:
    """What the routes have in common."""

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """An error object (https://docs.anthropic.com/en/api/errors)."""
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        made: Wire = {"type": kind, "message": error["message"]}
        if error.get("param") == "thread":
            made["details"] = _NO_THREADS
        return Frame({"type": "error", "error": made, "request_id": error.get("request_id")}, "error")


class Messages(_Route):
    """A response of the model to a conversation."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A chat completion. Raises :class:`~llmk.api.RequestError`."""
        request = parse(MessagesRequest, body)
        made = {**_common(request), "max_tokens": request.max_tokens}
        made |= {name: value for name in _SAME if (value := getattr(request, name)) is not None}
        if request.stop_sequences:
            made["stop"] = request.stop_sequences
        if "tools" in made:
            made |= _tool_choice(request)
        if (format := request.output_config.format or request.output_format) is not None:
            schema = {"name": "output", "schema": format.json_schema}
            made["response_format"] = {"type": "json_schema", "json_schema": schema}
        if is_continued(request.messages):
            made["continue_final_message"] = True
        hidden = request.thinking is not None and request.thinking.display == "omitted"
        options = {"max_tokens": request.max_tokens, "hide_thinking": hidden}
        return TranslatedRequest(
            "chat",
            made,
            request.stream,
            options,
            thinking=_thinking(request),
            fit_max_tokens=True,
            prefixes=cached_prefixes(request),
        )

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> MessageRenderer:
        """The renderer of a message."""
        return MessageRenderer(head, options["max_tokens"], hide_thinking=options["hide_thinking"])

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """Not used: every request is a chat completion."""
        raise NotImplementedError


class CountTokens(_Route):
    """The number of tokens of a conversation."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """The conversation, to be tokenized. Raises :class:`~llmk.api.RequestError`."""
        request = parse(CountRequest, body)
        made = _common(request)
        if request.tool_choice is not None and request.tool_choice.type == "none":
            made.pop("tools", None)
        if is_continued(request.messages):
            made["add_generation_prompt"] = False
        return TranslatedRequest("tokenize", made, thinking=_thinking(request))

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> MessageRenderer:
        """Not used: nothing is generated."""
        raise NotImplementedError

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The number."""
        return {"input_tokens": result["count"]}


def _common(request: CountRequest) -> Wire:
    """What determines the prompt."""
    made: Wire = {"messages": openai_messages(request.system, request.messages)}
    if not request.model.startswith(_OTHERS_MODELS):
        made["model"] = request.model
    if tools := offered_tools(request.tools, request.messages):
        made["tools"] = [_tool(tool) for tool in tools]
    if request.tool_choice is not None:
        _check(request.tool_choice, [tool.name for tool in tools])
    return made


def _check(choice: ToolChoice, names: Sequence[str]) -> None:
    if choice.type in ("any", "tool") and not names:
        raise RequestError(f"'tool_choice' of type '{choice.type}' needs 'tools'", param="tool_choice")
    if choice.name and choice.name not in names:
        message = f"'tool_choice' names the tool {choice.name[:80]!r}, which is not in 'tools'"
        raise RequestError(message, param="tool_choice")


def _tool(tool: Tool) -> Wire:
    function: Wire = {"name": tool.name, "parameters": tool.input_schema}
    function |= {"description": tool.description} if tool.description else {}
    function |= {"strict": True} if tool.strict else {}
    return {"type": "function", "function": function}


def _tool_choice(request: MessagesRequest) -> Wire:
    choice = request.tool_choice
    if choice is None:
        return {}
    named = {"type": "function", "function": {"name": choice.name}}
    kinds: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none", "tool": named}
    made = {"tool_choice": kinds[choice.type]}
    return {**made, "parallel_tool_calls": False} if choice.disable_parallel_tool_use else made


def _thinking(request: CountRequest) -> bool | str:
    """How much the model should think: a level, or on or off. It is off unless it was requested, as in Anthropic's
    API, since clients that don't request it reserve no tokens for it."""
    if request.thinking is None or request.thinking.type == "disabled":
        return False
    effort = request.output_config.effort
    for message in request.messages:
        if message.output_config is not None:
            effort = message.output_config.effort or effort
    return True if effort is None else _EFFORTS[effort]
