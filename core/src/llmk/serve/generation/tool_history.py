"""Orders tool results in a conversation like their tool calls: few chat templates use ids, most rely on the order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import RequestError
from llmk.serve.protocol.chat import Message, ToolCall


def in_order(messages: Sequence[Message]) -> Iterator[Message]:
    """``messages``, with tool results in the order of the assistant's calls.

    Raises :class:`~llmk.api.RequestError` for a ``tool_call_id`` without a call, and for the name of another tool.
    """
    calls: Sequence[ToolCall] = ()
    results: list[tuple[int, Message]] = []
    for at, message in enumerate(messages):
        if message.role == "tool":
            results.append((_number(at, message, calls), message))
            continue
        yield from _sorted(results)
        results = []
        calls = message.tool_calls or ()
        yield message
    yield from _sorted(results)


def _sorted(results: list[tuple[int, Message]]) -> Iterator[Message]:
    """Results ordered by the index of their call; unchanged if any has no id."""
    if all(number >= 0 for number, _ in results):
        results = sorted(results, key=lambda result: result[0])
    yield from (message for _, message in results)


def _number(at: int, message: Message, calls: Sequence[ToolCall]) -> int:
    """The index of a result's call; -1 if it has no id."""
    if message.tool_call_id is None or (calls and not all(call.id for call in calls)):
        return -1
    ids = [call.id for call in calls]
    if message.tool_call_id not in ids:
        known = ", ".join(ids) or "none"
        raise RequestError(
            f"'{message.tool_call_id}' is not the id of a call in the assistant's last message (its calls: {known})",
            param=f"messages[{at}].tool_call_id",
        )
    number = ids.index(message.tool_call_id)
    name = calls[number].function.name
    if message.name not in (None, name):
        raise RequestError(f"the result is of a call of {name!r}, not {message.name!r}", param=f"messages[{at}].name")
    return number
