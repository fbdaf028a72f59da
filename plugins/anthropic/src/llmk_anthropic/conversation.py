"""Conversations in OpenAI's format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from llmk.api import RequestError
from llmk_anthropic.blocks import (
    Block,
    DocumentBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from llmk_anthropic.schema import Message
from llmk_anthropic.tools import Tool, ToolAdditionBlock, ToolDefinition, ToolRemovalBlock

Wire = dict[str, Any]
Placed = tuple[str, Any]
"""A block with its path in the request."""

_BILLING = "x-anthropic-billing-header:"
"""How a block starts that coding agents put first in the system prompt. It is different in each request, so that no two
would have a common prefix; it says nothing to a model."""


def openai_messages(system: str | Sequence[TextBlock], messages: Sequence[Message]) -> list[Wire]:
    """The messages of a chat completion. Messages of the same role that follow each other are one.

    Raises:
        RequestError: for a block in a message of a role that can't have it, and for a result without a call.
    """
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    texts = [text for text in texts if text and not text.startswith(_BILLING)]
    found: list[Wire] = [{"role": "system", "content": _content(texts)}] if texts else []
    calls: set[str] = set()
    for role, run in groupby(_shown(messages), lambda item: item[1].role):
        blocks = [block for at, message in run for block in _blocks(at, message)]
        if role == "assistant":
            found.append(_assistant(blocks))
            calls = {block.id for _, block in blocks if isinstance(block, ToolUseBlock)}
        elif role == "user":
            found += _user(blocks, calls)
        elif others := [placed for placed in blocks if not isinstance(placed[1], ToolAdditionBlock | ToolRemovalBlock)]:
            found.append({"role": "system", "content": _content(list(_texts(others, "system")))})
    return found


def offered_tools(tools: Sequence[Tool], messages: Sequence[Message]) -> list[Tool]:
    """The tools that the model may call next: those of the request, as its messages have changed them.

    Raises:
        RequestError: for two tools of the request with one name, and for a change of a tool that is neither among them
            nor defined in a message before it.
    """
    known: dict[str, Tool] = {}
    for at, tool in enumerate(tools):
        if known.setdefault(tool.name, tool) is not tool:
            raise RequestError(f"tools.{at}.name: two tools are called {tool.name!r}", param=f"tools.{at}.name")
    offered = dict(known)
    for at, message in enumerate(messages):
        for path, block in _blocks(at, message) if message.role == "system" else ():
            if not isinstance(block, ToolAdditionBlock | ToolRemovalBlock):
                continue
            if isinstance(block.tool, ToolDefinition):
                known[block.tool.name] = block.tool.definition
            elif block.tool.name not in known:
                what = f"there is no tool {block.tool.name[:80]!r}, neither in 'tools' nor in a message before"
                raise RequestError(f"{path}.tool.name: {what}", param=f"{path}.tool.name")
            if isinstance(block, ToolAdditionBlock):
                offered[block.tool.name] = known[block.tool.name]
            else:
                offered.pop(block.tool.name, None)
    return list(offered.values())


def _shown(messages: Sequence[Message]) -> Iterator[tuple[int, Message]]:
    """The messages with their numbers, without those that were for an earlier turn."""
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    for at, message in enumerate(messages):
        if message.clear_at == "never" or at > last:
            yield at, message


def is_continued(messages: Sequence[Message]) -> bool:
    """Whether the response continues the last message.

    Raises:
        RequestError: if that has tool calls, whose results are missing.
    """
    last = messages[-1]
    if last.role != "assistant":
        return False
    if not isinstance(last.content, str) and any(isinstance(block, ToolUseBlock) for block in last.content):
        at = f"messages.{len(messages) - 1}"
        raise RequestError(f"{at}: the results of its 'tool_use' blocks must follow in a message of the user", param=at)
    return True


def _blocks(at: int, message: Message) -> Iterator[Placed]:
    if message.role == "system" and not message.content:
        return
    if isinstance(message.content, str):
        yield f"messages.{at}.content", TextBlock(type="text", text=message.content)
        return
    for number, block in enumerate(message.content):
        yield f"messages.{at}.content.{number}", block


def _assistant(blocks: Sequence[Placed]) -> Wire:
    thoughts: list[str] = []
    others: list[Placed] = []
    calls: list[Wire] = []
    for path, block in blocks:
        if isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            calls.append(_call(path, block))
        elif not isinstance(block, RedactedThinkingBlock):
            others.append((path, block))
    message: Wire = {"role": "assistant", "content": _content(list(_texts(others, "assistant")))}
    if thought := "\n\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(path: str, block: ToolUseBlock) -> Wire:
    try:
        arguments = json.dumps(block.input, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise RequestError(f"{path}.input: it can't be written as JSON", param=f"{path}.input") from None
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _user(blocks: Sequence[Placed], calls: set[str]) -> list[Wire]:
    """Results of tool calls first, as they belong to the assistant's message, then everything else."""
    found: list[Wire] = []
    others: list[Placed] = []
    for path, block in blocks:
        if not isinstance(block, ToolResultBlock):
            others.append((path, block))
            continue
        if block.tool_use_id not in calls:
            known = ", ".join(sorted(calls)) or "none"
            what = f"{block.tool_use_id[:80]!r} is not the id of a 'tool_use' block of the message before"
            raise RequestError(f"{path}.tool_use_id: {what} (its blocks: {known})", param=f"{path}.tool_use_id")
        found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)})
    if others or not found:
        found.append({"role": "user", "content": _content(list(_texts(others, "user")))})
    return found


def _result(block: ToolResultBlock) -> str | list[Wire]:
    texts = [block.content] if isinstance(block.content, str) else [part.text for part in block.content]
    if block.is_error and not any(text.lower().startswith("error") for text in texts[:1]):
        texts[:1] = [f"Error: {texts[0]}" if texts else "Error"]
    return _content(texts)


def _texts(blocks: Sequence[tuple[str, Block]], role: str) -> Iterator[str]:
    for path, block in blocks:
        if not isinstance(block, TextBlock | DocumentBlock | SearchResultBlock):
            raise RequestError(f"{path}: a message of role {role} can't have blocks of type {block.type!r}", param=path)
        yield block.text


def _content(texts: Sequence[str]) -> str | list[Wire]:
    """One text, or a part for each."""
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]
