"""A route: Cohere's chat API, version 2 (https://docs.cohere.com/v2/reference/chat)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmk.api import (
    AnswerDelta,
    AnswerHead,
    AnswerRenderer,
    ApiRoute,
    Event,
    Frame,
    ReasoningDelta,
    ServedModelInfo,
    TextDelta,
    TokenCounts,
    TranslatedRequest,
)
from llmk.api.http.bodies import parse
from llmk.api.http.calls import CompleteCall, CompleteCalls
from llmk_meadow.cohere_body import REASONS, ChatBody, chat_of, check_calls


class Chat(ApiRoute):
    """``POST /v2/chat``."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """To chat completions."""
        request = parse(ChatBody, body)
        check_calls(request)
        return TranslatedRequest("chat", chat_of(request), stream=request.stream)

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """A message."""
        return Message(head)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """Chats alone are translated to, so there is nothing to add."""
        return dict(result)

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """Cohere's errors have an id and a message."""
        return Frame({"id": error.get("request_id") or "", "message": error["message"]}, "error")


def usage_of(usage: TokenCounts) -> dict[str, Any]:
    """Tokens of the prompt and of the response."""
    tokens = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    billed = {**tokens, "input_tokens": usage.prompt_tokens - usage.cached_tokens}
    return {"billed_units": billed, "tokens": tokens, "cached_tokens": usage.cached_tokens}


def reason_of(delta: AnswerDelta) -> str:
    """Why a choice ended."""
    if delta.finish_reason == "stop" and isinstance(delta.stop_reason, str):
        return "STOP_SEQUENCE"
    return REASONS.get(delta.finish_reason or "stop", "COMPLETE")


class Message(AnswerRenderer):
    """One message. A content is open while pieces of its type come; calls come whole."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._calls = CompleteCalls()
        self._started = False
        self._type = ""
        self._num_contents = 0
        self._num_calls = 0
        self._reason = "COMPLETE"
        self._contents: list[dict[str, str]] = []
        self._tool_calls: list[dict[str, Any]] = []

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        """Server-sent events."""
        if not self._started:
            self._started = True
            message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            yield frame("message-start", id=self._head.id, delta={"message": message})
        for event in delta.events:
            yield from self._event(event)
        if delta.finish_reason is not None:
            self._reason = reason_of(delta)
            yield from self._end_content()

    def _event(self, event: Event) -> Iterable[Frame]:
        match self._calls.of(event):
            case TextDelta(text):
                yield from self._piece("text", text)
            case ReasoningDelta(text):
                yield from self._piece("thinking", text)
            case CompleteCall() as call:
                yield from self._end_content()
                yield from self._call(call)

    def _piece(self, type: str, text: str) -> Iterable[Frame]:
        if not text:
            return
        if self._type != type:
            yield from self._end_content()
            self._type = type
            self._contents.append({"type": type, type: ""})
            content = {"message": {"content": {"type": type, type: ""}}}
            yield frame("content-start", index=self._num_contents, delta=content)
        self._contents[-1][type] += text
        yield frame("content-delta", index=self._num_contents, delta={"message": {"content": {type: text}}})

    def _end_content(self) -> Iterable[Frame]:
        if self._type:
            yield frame("content-end", index=self._num_contents)
            self._num_contents += 1
            self._type = ""

    def _call(self, call: CompleteCall) -> Iterable[Frame]:
        index, self._num_calls = self._num_calls, self._num_calls + 1
        id = call.id or f"call_{self._head.id}_{index}"
        function = {"name": call.name, "arguments": call.text}
        self._tool_calls.append({"id": id, "type": "function", "function": function})
        opened = {"id": id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield frame("tool-call-start", index=index, delta={"message": {"tool_calls": opened}})
        piece = {"message": {"tool_calls": {"function": {"arguments": call.text}}}}
        yield frame("tool-call-delta", index=index, delta=piece)
        yield frame("tool-call-end", index=index)

    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        """The reason and the tokens."""
        yield from self._end_content()
        yield frame("message-end", id=self._head.id, delta={"finish_reason": self._reason, "usage": usage_of(usage)})

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """As frames, of which the message is made."""
        for _ in self.frames(delta, usage):
            pass

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The message, once it is complete."""
        message: dict[str, Any] = {"role": "assistant", "content": self._contents}
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        return {
            "id": self._head.id,
            "finish_reason": self._reason,
            "message": message,
            "usage": usage_of(usage),
        }


def frame(type: str, **fields: Any) -> Frame:
    """An event, whose name its data repeats."""
    return Frame({"type": type, **fields}, type)
