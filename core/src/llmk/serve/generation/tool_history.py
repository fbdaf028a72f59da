"""Results of calls in a conversation: which call each is of. Chat templates go by their order, and few look at ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmk.api import RequestError
from llmk.serve.protocol.chat import Message, ToolCall


def in_order(messages: Sequence[Message]) -> Iterator[Message]:
    """``messages``, with the results behind an assistant's calls in the order of the calls.

    Raises :class:`~llmk.api.RequestError` for a ``tool_call_id`` of no such call, and for the name of another tool.
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


def nameless(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the name of who speaks."""
    kept = message if message["role"] == "tool" else {key: value for key, value in message.items() if key != "name"}
    return dict(kept)


def _sorted(results: list[tuple[int, Message]]) -> Iterator[Message]:
    """Results by the number of their call; those that name none stay where they are."""
    if all(number >= 0 for number, _ in results):
        results = sorted(results, key=lambda result: result[0])
    yield from (message for _, message in results)


def _number(at: int, message: Message, calls: Sequence[ToolCall]) -> int:
    """The number of the call that a result is of, -1 where it doesn't say."""
    if message.tool_call_id is None or (calls and not all(call.id for call in calls)):
        return -1
    ids = [call.id for call in calls]
    if message.tool_call_id not in ids:
        known = ", ".join(ids) or "none"
        raise RequestError(
            f"'{message.tool_call_id}' is the id of no call that the assistant just made (its calls: {known})",
            param=f"messages[{at}].tool_call_id",
        )
    number = ids.index(message.tool_call_id)
    name = calls[number].function.name
    if message.name not in (None, name):
        raise RequestError(f"the result is of a call of {name!r}, not {message.name!r}", param=f"messages[{at}].name")
    return number
