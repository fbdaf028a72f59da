"""Cohere's chat API, version 2: ``POST /v2/chat``, for clients such as ``cohere.ClientV2(base_url=...)``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from llmk.api import (
    AnswerDelta,
    AnswerHead,
    AnswerRenderer,
    ApiRoute,
    Frame,
    ReasoningDelta,
    RequestError,
    ServedModelInfo,
    TextDelta,
    TokenCounts,
    TranslatedRequest,
)
from llmk.api.http.calls import CompleteCall, CompleteCalls
from llmk_lagoon.heron_chat_bodies import Answered, Asked, DocumentPart, TextPart, ThinkingPart, ToolResult, checked

NAMES = {
    **{name: name for name in ("model", "max_tokens", "temperature", "seed", "frequency_penalty", "presence_penalty")},
    "p": "top_p",
    "k": "top_k",
    "stop_sequences": "stop",
}
"""Parameters, by their names here and in chat completions."""


class Chat(ApiRoute):
    """Translates requests in a worker process, and renders responses in the server's, by another object."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A chat. What is left out is left out of the translation, so that the model's own values hold."""
        asked = checked(body)
        if asked.tool_choice == "REQUIRED" and not asked.tools:
            raise RequestError("tool_choice: 'REQUIRED' needs tools", param="tool_choice")
        made: dict[str, Any] = {"messages": [_message(each) for each in asked.messages]}
        for name, other in NAMES.items():
            if (value := getattr(asked, name)) is not None:
                made[other] = value
        if asked.tools:
            made["tools"] = [tool.model_dump(exclude_none=True) for tool in asked.tools]
        if asked.tool_choice is not None:
            made["tool_choice"] = asked.tool_choice.lower()
        if asked.response_format is not None and asked.response_format.type == "json_object":
            made["response_format"] = {"type": "json_object"}
            if (schema := asked.response_format.json_schema) is not None:
                named = {"name": "response", "schema": schema, "strict": True}
                made["response_format"] = {"type": "json_schema", "json_schema": named}
        thinking = None if asked.thinking is None else asked.thinking.type == "enabled"
        return TranslatedRequest("chat", made, asked.stream, thinking=thinking)

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """The renderer of one response."""
        return Answer(head)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """Not used: requests are translated to chats alone."""
        raise NotImplementedError

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """Any error, also of the server's own checks."""
        return Frame({"id": error["request_id"], "message": error["message"]}, "error")


def _message(message: Asked | Answered | ToolResult) -> dict[str, Any]:
    """A message in the format of chat completions."""
    parts: Sequence[Any] = () if isinstance(message.content, str) else message.content
    if isinstance(message, Asked):
        content = [{"type": "text", "text": part.text} for part in parts]
        return {"role": message.role, "content": content or message.content}
    if isinstance(message, ToolResult):
        content = "\n".join(_result_text(part) for part in parts) if parts else message.content or ""
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    said = "".join(part.text for part in parts if isinstance(part, TextPart)) if parts else message.content or ""
    made: dict[str, Any] = {"role": "assistant", "content": message.tool_plan + said}
    if thought := "".join(part.thinking for part in parts if isinstance(part, ThinkingPart)):
        made["reasoning_content"] = thought
    if message.tool_calls:
        made["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return made


def _result_text(part: TextPart | DocumentPart) -> str:
    """The text of a part of a tool's result."""
    if isinstance(part, TextPart):
        return part.text
    data = part.document.data
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


class Answer(AnswerRenderer):
    """One answer: blocks of text and of thoughts, which start and end, and calls. A call comes when it is complete,
    since clients can't take back one that fails."""

    def __init__(self, head: AnswerHead) -> None:
        self._id = str(UUID(head.id))
        self._started = False
        self._blocks: list[tuple[str, list[str]]] = []
        self._open = False
        self._collected = CompleteCalls()
        self._calls: list[dict[str, Any]] = []
        self._ids: set[str] = set()
        self._finish_reason = "COMPLETE"

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        """What is new."""
        yield from self._start()
        for event in delta.events:
            match self._collected.of(event):
                case TextDelta(text) if text:
                    yield from self._piece("text", text)
                case ReasoningDelta(text) if text:
                    yield from self._piece("thinking", text)
                case CompleteCall() as call:
                    yield from self._end_block()
                    yield from self._call(call)
        if delta.finish_reason is not None:
            stopped = isinstance(delta.stop_reason, str)
            by_reason = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}
            self._finish_reason = by_reason.get(delta.finish_reason, "STOP_SEQUENCE" if stopped else "COMPLETE")

    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        """Behind all deltas."""
        yield from self._start()
        yield from self._end_block()
        delta = {"finish_reason": self._finish_reason, "usage": _usage(usage)}
        yield Frame({"type": "message-end", "id": self._id, "delta": delta}, "message-end")

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """The same for a complete response, which is made of what the frames leave."""
        for _ in self.frames(delta, usage):
            pass

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The complete response."""
        message: dict[str, Any] = {"role": "assistant"}
        if self._blocks or not self._calls:
            message["content"] = [{"type": kind, kind: "".join(pieces)} for kind, pieces in self._blocks]
        if self._calls:
            message["tool_calls"] = self._calls
        return {"id": self._id, "finish_reason": self._finish_reason, "message": message, "usage": _usage(usage)}

    def _start(self) -> Iterator[Frame]:
        if not self._started:
            self._started = True
            message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            yield Frame({"type": "message-start", "id": self._id, "delta": {"message": message}}, "message-start")

    def _piece(self, kind: str, text: str) -> Iterator[Frame]:
        if not self._open or self._blocks[-1][0] != kind:
            yield from self._end_block()
            self._blocks.append((kind, []))
            self._open = True
            yield _frame("content-start", len(self._blocks) - 1, {"content": {"type": kind, kind: ""}})
        self._blocks[-1][1].append(text)
        yield _frame("content-delta", len(self._blocks) - 1, {"content": {kind: text}})

    def _end_block(self) -> Iterator[Frame]:
        if self._open:
            self._open = False
            yield _frame("content-end", len(self._blocks) - 1)

    def _call(self, call: CompleteCall) -> Iterator[Frame]:
        """The frames of a call. An id that the model wrote stays, unless it wrote it before."""
        at = len(self._calls)
        id = call.id if call.id and call.id not in self._ids else f"call_{self._id}_{at}"
        self._ids.add(id)
        made = {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
        self._calls.append(made)
        opened = {**made, "function": {"name": call.name, "arguments": ""}}
        yield _frame("tool-call-start", at, {"tool_calls": opened})
        yield _frame("tool-call-delta", at, {"tool_calls": {"function": {"arguments": call.text}}})
        yield _frame("tool-call-end", at)


def _frame(type: str, index: int, message: Mapping[str, Any] | None = None) -> Frame:
    """An event about the block or the call of that index."""
    delta = {} if message is None else {"delta": {"message": message}}
    return Frame({"type": type, "index": index, **delta}, type)


def _usage(usage: TokenCounts) -> dict[str, Any]:
    counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    return {"billed_units": counts, "tokens": dict(counts), "cached_tokens": usage.cached_tokens}
