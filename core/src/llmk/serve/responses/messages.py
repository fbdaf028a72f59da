"""Items as messages of a chat completion: an assistant's reasoning, text and calls are one message."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from llmk.api import RequestError
from llmk.serve.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpListItem,
    MessageItem,
    PlainItem,
    ReasoningItem,
    joined,
)

_SEALED = "llmk1."
"""What encoded reasoning starts with."""


def messages_of(items: Sequence[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The messages of a conversation.

    ``instructions`` and the system's and developer's messages that follow them are one system message: many chat
    templates know no developer, and permit a system message only as the first.

    Raises:
        RequestError: for encoded reasoning that is not llmk's.
    """
    plain = list(_plain(items))
    first = list(takewhile(_instructs, plain))
    texts = [instructions or "", *(joined(item.content) for item in first if isinstance(item, MessageItem))]
    system = "\n\n".join(text for text in texts if text)
    messages = [{"role": "system", "content": system}] if system else []
    return messages + list(_turns(plain[len(first) :]))


def _plain(items: Sequence[Item]) -> Iterator[PlainItem]:
    """``items``, with calls of MCP servers' tools as those of functions. A call that was not approved returns that; one
    without an answer is left out."""
    asked = {item.id: item for item in items if isinstance(item, McpApprovalRequestItem)}
    for at, item in enumerate(items):
        if isinstance(item, McpCallItem):
            yield from _called(f"mcp_{at}", item.name, item.arguments, item.result)
        elif isinstance(item, McpApprovalResponseItem):
            request = asked.get(item.approval_request_id)
            if request is not None and not item.approve:
                why = f": {item.reason}" if item.reason else "."
                yield from _called(f"mcp_{at}", request.name, request.arguments, f"The user did not approve this{why}")
        elif not isinstance(item, McpListItem | McpApprovalRequestItem):
            yield item


def _called(id: str, name: str, arguments: str, output: str) -> Iterator[PlainItem]:
    yield FunctionCallItem(type="function_call", call_id=id, name=name, arguments=arguments)
    yield FunctionOutputItem(type="function_call_output", call_id=id, output=output)


def sealed(text: str) -> str:
    """Reasoning as an opaque string, which a client sends back. It is encoded, not encrypted."""
    return _SEALED + base64.urlsafe_b64encode(text.encode()).decode()


def reasoning_text(item: ReasoningItem) -> str:
    """The text of a reasoning item. Raises :class:`~llmk.api.RequestError` for an encoding that is not llmk's."""
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content is None:
        return "\n".join(part.text for part in item.summary)
    if item.encrypted_content.startswith(_SEALED):
        try:
            encoded = item.encrypted_content.removeprefix(_SEALED)
            return base64.b64decode(encoded, altchars=b"-_", validate=True).decode()
        except ValueError:
            pass
    hint = "send the item as this server returned it, or leave it out"
    raise RequestError("'encrypted_content' of a reasoning item was not made by llmk", param="input", hint=hint)


def _turns(items: Sequence[PlainItem]) -> Iterator[dict[str, Any]]:
    answered = {item.call_id for item in items if isinstance(item, FunctionOutputItem)}
    turn = _Turn()
    for item in items:
        if isinstance(item, FunctionOutputItem) or (isinstance(item, MessageItem) and item.role != "assistant"):
            yield from turn.ended()
            yield _message(item)
            turn = _Turn()
        elif not _broken(item, answered):
            if not turn.takes(item):
                yield from turn.ended()
                turn = _Turn()
            turn.add(item)
    yield from turn.ended()


class _Turn:
    """What the assistant said between two inputs, as one message."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {"role": "assistant"}

    def takes(self, item: PlainItem) -> bool:
        """Whether ``item`` belongs to this message: after calls all does, since their outputs must follow it."""
        message = self._message
        return "tool_calls" in message or "content" not in message or isinstance(item, FunctionCallItem)

    def add(self, item: PlainItem) -> None:
        """Adds an item of the assistant."""
        message = self._message
        if isinstance(item, ReasoningItem):
            if text := reasoning_text(item):
                message["reasoning_content"] = message.get("reasoning_content", "") + text
        elif isinstance(item, MessageItem):
            message["content"] = message.get("content", "") + joined(item.content)
        elif isinstance(item, FunctionCallItem):
            function = {"name": item.name, "arguments": _arguments(item.arguments)}
            call = {"id": item.call_id, "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)

    def ended(self) -> Iterator[dict[str, Any]]:
        """The message, if it has anything."""
        if len(self._message) > 1:
            yield self._message


def _instructs(item: PlainItem) -> bool:
    return isinstance(item, MessageItem) and item.role in ("system", "developer")


def _broken(item: PlainItem, answered: set[str]) -> bool:
    """Whether an item is a call that broke off, which the text after it repeats, and that has no output."""
    return isinstance(item, FunctionCallItem) and item.status == "incomplete" and item.call_id not in answered


def _message(item: MessageItem | FunctionOutputItem) -> dict[str, Any]:
    if isinstance(item, FunctionOutputItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)}
    role = "system" if item.role == "developer" else item.role
    return {"role": role, "content": joined(item.content)}


def _arguments(text: str) -> str:
    """Arguments as JSON; what a model wrote that is not JSON, as a JSON string."""
    try:
        json.loads(text or "{}", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(text)
    return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
