"""Cohere's chat API, version 2: ``POST /v2/chat``, streamed as events or complete, with thoughts and tools.

Images, retrieval of ``documents``, citations and log-probabilities are refused by name; ``safety_mode`` and
``citation_options`` are taken, and have no effect. Calls are sent once they are whole, since Cohere's clients can't
take back one that fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
from llmk.api.http.bodies import parse
from llmk.api.http.calls import CompleteCall, CompleteCalls
from llmk_delta.ibis_cohere_bodies import (
    AssistantMessage,
    ChatBody,
    Document,
    SystemMessage,
    Text,
    Thinking,
    ToolMessage,
    UserMessage,
)

RENAMED = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "k": "top_k",
    "p": "top_p",
    "priority": "priority",
}
"""Cohere's names, and llmk's."""
FINISHED = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


def message_of(message: SystemMessage | UserMessage | AssistantMessage | ToolMessage) -> dict[str, Any]:
    """A message as chat completions have it. There is one for each, so that errors name the same place."""
    made: dict[str, Any] = {"role": message.role}
    parts = message.content if isinstance(message.content, list) else []
    thoughts = [part.thinking for part in parts if isinstance(part, Thinking)]
    content = [part_of(part) for part in parts if not isinstance(part, Thinking)]
    if isinstance(message, AssistantMessage):
        if message.tool_plan:
            content.insert(0, {"type": "text", "text": message.tool_plan})
            content += [{"type": "text", "text": message.content}] if isinstance(message.content, str) else []
        if thoughts:
            made["reasoning_content"] = "".join(thoughts)
        if message.tool_calls:
            made["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    made["content"] = content or (message.content if isinstance(message.content, str) else "")
    return made


def part_of(part: Text | Document) -> dict[str, Any]:
    """A part of a message; a document is a text, its JSON."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    data = part.document.data
    return {"type": "text", "text": data if isinstance(data, str) else json.dumps(data)}


class CohereChat(ApiRoute):
    """Translates requests in a worker process, and renders responses in the server's, by another object."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A chat. What is left out is left to the server."""
        asked = parse(ChatBody, body)
        if asked.tool_choice == "REQUIRED" and not asked.tools:
            raise RequestError("tool_choice REQUIRED needs tools", param="tool_choice")
        made: dict[str, Any] = {"model": asked.model, "messages": [message_of(each) for each in asked.messages]}
        for name, renamed in RENAMED.items():
            if (value := getattr(asked, name)) is not None:
                made[renamed] = value
        if asked.stop_sequences:
            made["stop"] = list(asked.stop_sequences)
        if asked.tools:
            strict = {"strict": True} if asked.strict_tools else {}
            functions = [tool.function.model_dump() | strict for tool in asked.tools]
            made["tools"] = [{"type": "function", "function": function} for function in functions]
        if asked.tool_choice is not None:
            made["tool_choice"] = asked.tool_choice.lower()
        if asked.response_format is not None and asked.response_format.type == "json_object":
            schema = asked.response_format.json_schema
            made["response_format"] = {"type": "json_object"}
            if schema is not None:
                made["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        thinking = None if asked.thinking is None else asked.thinking.type == "enabled"
        return TranslatedRequest("chat", made, asked.stream, thinking=thinking)

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """The renderer of one response."""
        return CohereAnswer(head)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """Not used: requests are translated to chats alone."""
        raise NotImplementedError

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """Any error, also of the server's own checks."""
        return Frame({"id": error["request_id"], "message": error["message"]}, "error")


def usage_of(usage: TokenCounts) -> dict[str, Any]:
    """What a response says about tokens; those that were cached are not billed."""
    billed = {"input_tokens": usage.prompt_tokens - usage.cached_tokens, "output_tokens": usage.completion_tokens}
    tokens = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    return {"billed_units": billed, "tokens": tokens, "cached_tokens": usage.cached_tokens}


class CohereAnswer(AnswerRenderer):
    """One response. Its content is a list of blocks, each of text or of thoughts; a call ends a block."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._collector = CompleteCalls()
        self._started = False
        self._open = ""
        self._num_blocks = 0
        self._num_calls = 0
        self._finish = "COMPLETE"
        self._blocks: list[tuple[str, list[str]]] = []
        self._calls: list[dict[str, Any]] = []

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        """What is new."""
        if not self._started:
            self._started = True
            message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            yield Frame({"type": "message-start", "id": self._head.id, "delta": {"message": message}}, "message-start")
        for event in delta.events:
            match self._collector.of(event):
                case TextDelta(text) if text:
                    yield from self._piece("text", text)
                case ReasoningDelta(text) if text:
                    yield from self._piece("thinking", text)
                case CompleteCall() as call:
                    yield from self._end_block()
                    yield from self._call(call)
        if delta.finish_reason is not None:
            stopped = "STOP_SEQUENCE" if isinstance(delta.stop_reason, str) else "COMPLETE"
            self._finish = FINISHED.get(delta.finish_reason, stopped)

    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        """Behind all deltas."""
        yield from self._end_block()
        end = {"finish_reason": self._finish, "usage": usage_of(usage)}
        yield Frame({"type": "message-end", "id": self._head.id, "delta": end}, "message-end")

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """Folds the frames of a delta."""
        for frame in self.frames(delta, usage):
            match frame.data:
                case {"type": "content-start", "delta": {"message": {"content": {"type": kind}}}}:
                    self._blocks.append((kind, []))
                case {"type": "content-delta", "delta": {"message": {"content": content}}}:
                    self._blocks[-1][1].extend(content.values())
                case {"type": "tool-call-start", "delta": {"message": {"tool_calls": call}}}:
                    self._calls.append(call)
                case {"type": "tool-call-delta", "delta": {"message": {"tool_calls": {"function": function}}}}:
                    self._calls[-1]["function"] |= function

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The complete response."""
        message: dict[str, Any] = {"role": "assistant"}
        if self._blocks:
            message["content"] = [{"type": kind, kind: "".join(pieces)} for kind, pieces in self._blocks]
        if self._calls:
            message["tool_calls"] = self._calls
        usage_data = usage_of(usage)
        return {"id": self._head.id, "finish_reason": self._finish, "message": message, "usage": usage_data}

    def _piece(self, kind: str, text: str) -> Iterator[Frame]:
        if self._open != kind:
            yield from self._end_block()
            self._open = kind
            yield self._frame("content-start", self._num_blocks, {"content": {"type": kind, kind: ""}})
        yield self._frame("content-delta", self._num_blocks, {"content": {kind: text}})

    def _end_block(self) -> Iterator[Frame]:
        if self._open:
            yield Frame({"type": "content-end", "index": self._num_blocks}, "content-end")
            self._open = ""
            self._num_blocks += 1

    def _call(self, call: CompleteCall) -> Iterator[Frame]:
        number = self._num_calls
        self._num_calls += 1
        name = call.id or f"{call.name}_{self._head.id[:12]}{number}"
        started = {"id": name, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield self._frame("tool-call-start", number, {"tool_calls": started})
        yield self._frame("tool-call-delta", number, {"tool_calls": {"function": {"arguments": call.text}}})
        yield Frame({"type": "tool-call-end", "index": number}, "tool-call-end")

    def _frame(self, kind: str, index: int, message: Mapping[str, Any]) -> Frame:
        return Frame({"type": kind, "index": index, "delta": {"message": message}}, kind)
