"""``cache_control``: prefixes of prompts that stay in the cache
(https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmk.api import CachedPrefix, RequestError
from llmk_anthropic.cacheable import CacheControl
from llmk_anthropic.conversation import openai_messages
from llmk_anthropic.schema import MessagesRequest

SECONDS = {"5m": 300.0, "1h": 3600.0}
_MOST = 4
_EMPTY: dict[str, Any] = {"role": "user", "content": ""}
"""Follows tools and a system prompt, since many chat templates render no conversation without a user."""
_Mark = tuple[CacheControl, str, int, int]
"""A mark: in ``tools``, ``system`` or ``messages``, at the number of an entry, and of its block."""


def cached_prefixes(request: MessagesRequest) -> list[CachedPrefix]:
    """The prefixes that a request marks: of each time to live, the longest.

    Raises:
        RequestError: for more than four marks, and for one of an hour behind one of five minutes.
    """
    marks = list(_marks(request))
    if len(marks) > _MOST:
        raise RequestError(f"at most {_MOST} blocks can have 'cache_control'; {len(marks)} have", param="cache_control")
    lives = [control.ttl for control, *_ in marks]
    if lives != sorted(lives):  # "1h" is before "5m"
        what = "a 'cache_control' with ttl '1h' can't come behind one with '5m' (tools, system, messages)"
        raise RequestError(what, param="cache_control")
    longest = {mark[0].ttl: mark for mark in marks}
    return [CachedPrefix(_messages(request, mark), SECONDS[ttl]) for ttl, mark in longest.items()]


def _marks(request: MessagesRequest) -> Iterator[_Mark]:
    """In the order of the prompt."""
    for at, tool in enumerate(request.tools):
        if tool.cache_control is not None:
            yield tool.cache_control, "tools", at, 0
    for at, text in enumerate(() if isinstance(request.system, str) else request.system):
        if text.cache_control is not None:
            yield text.cache_control, "system", at, 0
    for at, message in enumerate(request.messages):
        for number, block in enumerate(() if isinstance(message.content, str) else message.content):
            inner = getattr(block, "content", ())
            for each in (*(() if isinstance(inner, str) else inner), block):
                if (control := getattr(each, "cache_control", None)) is not None:
                    yield control, "messages", at, number
    if request.cache_control is not None:
        yield request.cache_control, "messages", len(request.messages) - 1, -1


def _messages(request: MessagesRequest, mark: _Mark) -> list[dict[str, Any]]:
    """The conversation up to the end of what is marked."""
    _, place, at, number = mark
    if place == "tools":
        return [_EMPTY]
    if place == "system":
        return [*openai_messages(request.system[: at + 1], []), _EMPTY]
    last = request.messages[at]
    if not isinstance(last.content, str) and number >= 0:
        last = last.model_copy(update={"content": last.content[: number + 1]})
    return openai_messages(request.system, [*request.messages[:at], last])
