"""Examples for the conformance kit: what requests mean, and what clients get."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from llmk.api import Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk.api.http.calls import CompleteCall
from llmk_testing.route_examples import MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

WHY = {"role": "user", "content": "Why?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}
CALL = {"id": "weather_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kiel"}'}}


def rendered(body: Any, spoken: Spoken) -> RouteAnswer:
    """The response once more, by the plainest code: from all that was said, at once."""
    id = spoken.head.id
    id = f"{id[:8]}-{id[8:12]}-{id[12:16]}-{id[16:20]}-{id[20:]}"
    frames: list[dict[str, Any]] = [
        {
            "type": "message-start",
            "id": id,
            "delta": {
                "message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            },
        }
    ]
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for kind, parts in groupby(spoken.parts, type):
        if kind is CompleteCall:
            for call in parts:
                at, name = len(calls), call.name
                known = [each["id"] for each in calls]
                own = f"call_{id}_{at}" if not call.id or call.id in known else call.id
                calls.append(
                    {"id": own, "type": "function", "function": {"name": name, "arguments": call.text}},
                )
                first = {"id": own, "type": "function", "function": {"name": name, "arguments": ""}}
                frames += [
                    {"type": "tool-call-start", "index": at, "delta": {"message": {"tool_calls": first}}},
                    {
                        "type": "tool-call-delta",
                        "index": at,
                        "delta": {"message": {"tool_calls": {"function": {"arguments": call.text}}}},
                    },
                    {"type": "tool-call-end", "index": at},
                ]
        else:
            word = {TextDelta: "text", ReasoningDelta: "thinking"}[kind]
            at, texts = len(content), [part.text for part in parts]
            content.append({"type": word, word: "".join(texts)})
            pieces = [("content-start", {"type": word, word: ""}), *(("content-delta", {word: text}) for text in texts)]
            frames += [{"type": type, "index": at, "delta": {"message": {"content": piece}}} for type, piece in pieces]
            frames.append({"type": "content-end", "index": at})
    finish_reason, stop_reason = spoken.end
    if finish_reason == "length":
        reason = "MAX_TOKENS"
    elif finish_reason == "tool_calls":
        reason = "TOOL_CALL"
    elif isinstance(stop_reason, str):
        reason = "STOP_SEQUENCE"
    else:
        reason = "COMPLETE"
    counts = {"input_tokens": spoken.usage.prompt_tokens, "output_tokens": spoken.usage.completion_tokens}
    usage = {"billed_units": counts, "tokens": counts, "cached_tokens": spoken.usage.cached_tokens}
    frames.append({"type": "message-end", "id": id, "delta": {"finish_reason": reason, "usage": usage}})
    message: dict[str, Any] = {"role": "assistant"}
    if content or not calls:
        message["content"] = content
    if calls:
        message["tool_calls"] = calls
    whole = {"id": id, "finish_reason": reason, "message": message, "usage": usage}
    return RouteAnswer([Frame(frame, frame["type"]) for frame in frames], whole)


def means(stream: bool = False, thinking: bool | None = None, **body: Any) -> TranslatedRequest:
    """A chat."""
    return TranslatedRequest("chat", body, stream, thinking=thinking)


CHAT = RouteExamples(
    requests=(
        RouteExample({"messages": [WHY]}, means(messages=[WHY])),
        RouteExample(
            {"model": "command", "messages": [WHY], "stream": True},
            means(model="command", messages=[WHY], stream=True),
        ),
        RouteExample(
            {
                "messages": [WHY],
                "max_tokens": 5,
                "temperature": 0,
                "p": 0,
                "k": 0,
                "seed": 0,
                "frequency_penalty": 0,
                "presence_penalty": 0,
                "stop_sequences": ["\n\n"],
                "safety_mode": "OFF",
                "stream": False,
                "documents": [],
            },
            means(
                messages=[WHY],
                max_tokens=5,
                temperature=0,
                top_p=0,
                top_k=0,
                seed=0,
                frequency_penalty=0,
                presence_penalty=0,
                stop=["\n\n"],
            ),
        ),
        RouteExample(
            {"messages": [WHY], "temperature": 0.3, "p": 0.75, "k": 500, "seed": 7, "presence_penalty": 1},
            means(messages=[WHY], temperature=0.3, top_p=0.75, top_k=500, seed=7, presence_penalty=1),
        ),
        RouteExample(
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Kiel"}, {"type": "text", "text": "?"}]},
                    {"role": "assistant", "tool_plan": "I will ask.", "tool_calls": [CALL]},
                    {
                        "role": "tool",
                        "tool_call_id": "weather_1",
                        "content": [
                            {"type": "document", "document": {"data": {"sky": "grün"}, "id": "1"}},
                            {"type": "document", "document": {"data": '{"wind": 9}'}},
                            {"type": "text", "text": "That is all."},
                        ],
                    },
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "Green?"},
                            {"type": "text", "text": "Green"},
                            {"type": "text", "text": " skies."},
                        ],
                        "citations": [],
                    },
                    {"role": "user", "content": "Sure?"},
                ],
                "tools": [TOOL],
                "tool_choice": "REQUIRED",
                "thinking": {"type": "disabled"},
            },
            means(
                messages=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Kiel"}, {"type": "text", "text": "?"}]},
                    {"role": "assistant", "content": "I will ask.", "tool_calls": [CALL]},
                    {
                        "role": "tool",
                        "tool_call_id": "weather_1",
                        "content": '{"sky": "grün"}\n{"wind": 9}\nThat is all.',
                    },
                    {"role": "assistant", "content": "Green skies.", "reasoning_content": "Green?"},
                    {"role": "user", "content": "Sure?"},
                ],
                tools=[TOOL],
                tool_choice="required",
                thinking=False,
            ),
        ),
        RouteExample(
            {
                "messages": [
                    WHY,
                    {"role": "assistant", "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "weather_1", "content": "rain"},
                    {"role": "assistant", "content": "Rain."},
                    WHY,
                ],
                "tools": [TOOL],
                "tool_choice": "NONE",
                "thinking": {"type": "enabled"},
            },
            means(
                messages=[
                    WHY,
                    {"role": "assistant", "content": "", "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "weather_1", "content": "rain"},
                    {"role": "assistant", "content": "Rain."},
                    WHY,
                ],
                tools=[TOOL],
                tool_choice="none",
                thinking=True,
            ),
        ),
        RouteExample(
            {"messages": [WHY], "response_format": {"type": "json_object"}},
            means(messages=[WHY], response_format={"type": "json_object"}),
        ),
        RouteExample(
            {"messages": [WHY], "response_format": {"type": "json_object", "json_schema": SCHEMA}},
            means(
                messages=[WHY],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "response", "schema": SCHEMA, "strict": True},
                },
            ),
        ),
        RouteExample({"messages": [WHY], "response_format": {"type": "text"}}, means(messages=[WHY])),
        RouteExample({}, refused="messages"),
        RouteExample({"messages": []}, refused="messages"),
        RouteExample({"messages": [{"role": "user", "content": ""}]}, refused="messages.0.content"),
        RouteExample({"messages": [WHY, {"role": "user"}]}, refused="messages.1.content"),
        RouteExample({"messages": [WHY], "tool_choice": "REQUIRED"}, refused="tool_choice"),
        RouteExample({"messages": [WHY], "tool_choice": "auto"}, refused="tool_choice"),
        RouteExample({"messages": [WHY], "max_tokens": 0}, refused="max_tokens"),
        RouteExample({"messages": [WHY], "temperature": -0.1}, refused="temperature"),
        RouteExample({"messages": [WHY], "p": 1.1}, refused="p"),
        RouteExample({"messages": [WHY], "k": 501}, refused="k"),
        RouteExample({"messages": [WHY], "seed": -1}, refused="seed"),
        RouteExample({"messages": [WHY], "frequency_penalty": 1.1}, refused="frequency_penalty"),
        RouteExample({"messages": [WHY], "presence_penalty": -0.1}, refused="presence_penalty"),
        RouteExample({"messages": [WHY], "stop_sequences": list("abcdef")}, refused="stop_sequences"),
        RouteExample({"messages": [WHY], "stop_sequences": [""]}, refused="stop_sequences.0"),
        RouteExample({"messages": [WHY], "documents": ["Kiel"]}, refused="documents"),
        RouteExample({"messages": [WHY], "logprobs": True}, refused="logprobs"),
        RouteExample({"messages": [WHY], "thinking": {"type": "enabled", "token_budget": 9}}, refused="thinking"),
        RouteExample({"messages": [WHY], "message": "Why?"}, refused="message"),
    ),
    oracle=rendered,
    errors={status: Frame({"id": ..., "message": MESSAGE}, "error") for status in (400, 401, 404, 413, 429, 500, 503)},
)
