"""Cohere's chat API for the conformance kit: what requests mean, and what its clients get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmk.api import Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk.api.http.calls import CompleteCall
from llmk_testing.route_examples import MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

_USER = {"role": "user", "content": "How warm is it in Oslo?"}
_CALL = {"id": "c1", "type": "function", "function": {"name": "warmth", "arguments": '{"place": "Oslo"}'}}
_PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
_TOOL = {
    "type": "function",
    "function": {"name": "warmth", "description": "How warm it is", "parameters": _PARAMETERS},
}
_RESULT = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12"}]}
_DEFAULTS = {
    "model": "m",
    "messages": [_USER],
    "temperature": 0.3,
    "top_p": 0.75,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}
_LEAST = {"model": "m", "messages": [_USER]}


def request(more: dict[str, Any], means: dict[str, Any]) -> RouteExample:
    """A request with more fields, and what they become."""
    return RouteExample({**_LEAST, **more}, TranslatedRequest("chat", {**_DEFAULTS, **means}))


def refused(field: str, more: dict[str, Any]) -> RouteExample:
    """A request that is refused for one of its fields."""
    return RouteExample({**_LEAST, **more}, refused=field)


def said(*messages: dict[str, Any]) -> dict[str, Any]:
    """A conversation."""
    return {"messages": [_USER, *messages]}


_SAMPLING = {"temperature": 0.7, "seed": 0, "frequency_penalty": 0.5, "presence_penalty": 0.25, "max_tokens": 100}
_REQUESTS = (
    request({}, {}),
    request({"temperature": 0, "seed": 7}, {"temperature": 0, "seed": 7}),
    RouteExample(
        {
            **_LEAST,
            **_SAMPLING,
            "stream": True,
            **said({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}),
            "stop_sequences": ["\n\n"],
            "p": 0.9,
            "k": 40,
            "safety_mode": "CONTEXTUAL",
        },
        TranslatedRequest(
            "chat",
            {
                **_DEFAULTS,
                **_SAMPLING,
                **said({"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}),
                "stop": ["\n\n"],
                "top_p": 0.9,
                "top_k": 40,
            },
            stream=True,
        ),
    ),
    request(
        {
            **said({"role": "assistant", "tool_plan": "I look it up.", "tool_calls": [_CALL]}, _RESULT),
            "tools": [_TOOL],
            "tool_choice": "REQUIRED",
            "strict_tools": True,
        },
        {
            **said(
                {"role": "assistant", "content": "I look it up.", "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "12"},
            ),
            "tools": [{"type": "function", "function": {**_TOOL["function"], "strict": True}}],  # type: ignore[dict-item]
            "tool_choice": "required",
        },
    ),
    request({"tools": [_TOOL], "tool_choice": "NONE"}, {"tools": ..., "tool_choice": "none"}),
    request(
        said({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        said({"role": "assistant", "content": "ab"}),
    ),
    request(
        {"response_format": {"type": "json_object", "json_schema": {"type": "object"}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "response", "schema": {"type": "object"}},
            }
        },
    ),
    request({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    request({"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}),
    refused("temperature", {"temperature": 1.5}),
    refused("stop_sequences", {"stop_sequences": list("abcdef")}),
    refused("max_tokens", {"max_tokens": 0}),
    refused("messages", {"messages": []}),
    refused("messages.1.tool_call_id", said(_RESULT)),
    refused(
        "messages.1.tool_calls.0.function.arguments",
        said({"role": "assistant", "tool_calls": [{**_CALL, "function": {"name": "f", "arguments": "[" * 10_000}}]}),
    ),
)


def chat(body: Any, spoken: Spoken) -> RouteAnswer:
    """A message, from its parts, in runs of one kind."""
    contents: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    frames = [frame("message-start", id=spoken.head.id, delta={"message": _EMPTY})]
    for kind, pieces in runs(spoken):
        if kind == "call":
            calls.append(called(spoken, pieces, len(calls)))
            frames += call_frames(calls[-1], len(calls) - 1)
            continue
        contents.append({"type": kind, kind: "".join(pieces)})
        at = len(contents) - 1
        start = {"message": {"content": {"type": kind, kind: ""}}}
        frames.append(frame("content-start", index=at, delta=start))
        for piece in pieces:
            frames.append(frame("content-delta", index=at, delta={"message": {"content": {kind: piece}}}))
        frames.append(frame("content-end", index=at))
    end = {"finish_reason": reason(*spoken.end), "usage": usage(spoken)}
    frames.append(frame("message-end", id=spoken.head.id, delta=end))
    message = {"role": "assistant", "content": contents, **({"tool_calls": calls} if calls else {})}
    return RouteAnswer(frames, {"id": spoken.head.id, "message": message, **end})


_EMPTY: dict[str, Any] = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}


def frame(type: str, **fields: Any) -> Frame:
    """An event."""
    return Frame({**fields, "type": type}, event=type)


def runs(spoken: Spoken) -> Iterator[tuple[str, Any]]:
    """Pieces of text and of thoughts that follow each other; and each call."""
    kind, pieces = "", list[str]()
    for part in spoken.parts:
        now = {TextDelta: "text", ReasoningDelta: "thinking", CompleteCall: "call"}[type(part)]
        if pieces and now != kind:
            yield kind, pieces
            pieces = []
        kind = now
        if isinstance(part, CompleteCall):
            yield kind, part
        else:
            pieces.append(part.text)
    if pieces:
        yield kind, pieces


def called(spoken: Spoken, call: CompleteCall, at: int) -> dict[str, Any]:
    """A call, with an id that no other has."""
    id = call.id if call.id else f"call_{spoken.head.id}_{at}"
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def call_frames(call: dict[str, Any], at: int) -> list[Frame]:
    """Its start, its arguments, and its end."""
    start = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
    arguments = {"function": {"arguments": call["function"]["arguments"]}}
    return [
        frame("tool-call-start", index=at, delta={"message": {"tool_calls": start}}),
        frame("tool-call-delta", index=at, delta={"message": {"tool_calls": arguments}}),
        frame("tool-call-end", index=at),
    ]


def reason(finish: str, stop: str | int | None) -> str:
    """Why it ended."""
    if finish == "stop" and isinstance(stop, str):
        return "STOP_SEQUENCE"
    return {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}[finish]


def usage(spoken: Spoken) -> dict[str, Any]:
    """What is billed, and what was computed."""
    prompt, cached, said = spoken.usage.prompt_tokens, spoken.usage.cached_tokens, spoken.usage.completion_tokens
    return {
        "billed_units": {"input_tokens": prompt - cached, "output_tokens": said},
        "tokens": {"input_tokens": prompt, "output_tokens": said},
        "cached_tokens": cached,
    }


CHATS = RouteExamples(
    requests=_REQUESTS,
    oracle=chat,
    errors={status: Frame({"id": "0" * 32, "message": MESSAGE}, "error") for status in (400, 429, 500)},
)
