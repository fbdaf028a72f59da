"""Examples for the conformance kit: what requests mean, and what clients get."""

from __future__ import annotations

from typing import Any

from llmk.api import Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk_testing.route_examples import MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"model": "command", "messages": HELLO}
PARAMETERS = {"type": "object", "properties": {"day": {"type": "string"}}}
FUNCTION = {"name": "sales", "description": "Sales of a day", "parameters": PARAMETERS}
CALL = {"id": "sales_1", "type": "function", "function": {"name": "sales", "arguments": '{"day": "2024-01-01"}'}}
TOOLS = [{"type": "function", "function": FUNCTION}]


def rendered(body: Any, spoken: Spoken) -> RouteAnswer:
    """The response once more, by the plainest code: from all that was said, at once."""
    id = spoken.head.id
    message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    frames = [Frame({"type": "message-start", "id": id, "delta": {"message": message}}, "message-start")]

    def say(kind: str, index: int, **message: Any) -> None:
        frames.append(Frame({"type": kind, "index": index, "delta": {"message": message}}, kind))

    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    running = False
    for part in spoken.parts:
        if isinstance(part, TextDelta | ReasoningDelta):
            kind = "text" if isinstance(part, TextDelta) else "thinking"
            if running and content[-1]["type"] != kind:
                frames.append(Frame({"type": "content-end", "index": len(content) - 1}, "content-end"))
                running = False
            if not running:
                say("content-start", len(content), content={"type": kind, kind: ""})
                content.append({"type": kind, kind: ""})
                running = True
            say("content-delta", len(content) - 1, content={kind: part.text})
            content[-1][kind] += part.text
        else:
            if running:
                frames.append(Frame({"type": "content-end", "index": len(content) - 1}, "content-end"))
                running = False
            name = part.id or f"{part.name}_{id[:12]}{len(calls)}"
            function = {"name": part.name, "arguments": ""}
            say("tool-call-start", len(calls), tool_calls={"id": name, "type": "function", "function": function})
            say("tool-call-delta", len(calls), tool_calls={"function": {"arguments": part.text}})
            frames.append(Frame({"type": "tool-call-end", "index": len(calls)}, "tool-call-end"))
            calls.append({"id": name, "type": "function", "function": {"name": part.name, "arguments": part.text}})
    if running:
        frames.append(Frame({"type": "content-end", "index": len(content) - 1}, "content-end"))

    counts = spoken.usage
    usage = {
        "billed_units": {
            "input_tokens": counts.prompt_tokens - counts.cached_tokens,
            "output_tokens": counts.completion_tokens,
        },
        "tokens": {"input_tokens": counts.prompt_tokens, "output_tokens": counts.completion_tokens},
        "cached_tokens": counts.cached_tokens,
    }
    reason, stopped_by = spoken.end
    finish = "STOP_SEQUENCE" if isinstance(stopped_by, str) else "COMPLETE"
    finish = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL", "stop": finish}[reason]
    delta = {"finish_reason": finish, "usage": usage}
    frames.append(Frame({"type": "message-end", "id": id, "delta": delta}, "message-end"))
    whole: dict[str, Any] = {"role": "assistant"}
    whole |= {"content": content} if content else {}
    whole |= {"tool_calls": calls} if calls else {}
    return RouteAnswer(frames, {"id": id, "finish_reason": finish, "message": whole, "usage": usage})


COHERE_CHAT = RouteExamples(
    requests=(
        RouteExample(ASKED, TranslatedRequest("chat", ASKED)),
        RouteExample(
            {
                **ASKED,
                "stream": True,
                "max_tokens": 5,
                "stop_sequences": ["\n", "END"],
                "temperature": 0,
                "seed": 0,
                "frequency_penalty": 0.5,
                "presence_penalty": 0.25,
                "k": 0,
                "p": 0.75,
                "priority": 0,
                "safety_mode": "CONTEXTUAL",
                "thinking": {"type": "disabled"},
            },
            TranslatedRequest(
                "chat",
                {
                    **ASKED,
                    "max_tokens": 5,
                    "stop": ["\n", "END"],
                    "temperature": 0,
                    "seed": 0,
                    "frequency_penalty": 0.5,
                    "presence_penalty": 0.25,
                    "top_k": 0,
                    "top_p": 0.75,
                    "priority": 0,
                },
                stream=True,
                thinking=False,
            ),
        ),
        RouteExample(
            {
                "model": "command",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "Sales?"}, {"type": "text", "text": " Now."}],
                    },
                    {"role": "assistant", "tool_plan": "I will look.", "tool_calls": [CALL]},
                    {
                        "role": "tool",
                        "tool_call_id": "sales_1",
                        "content": [{"type": "document", "document": {"data": {"sales": 3}, "id": "0"}}],
                    },
                    {
                        "role": "assistant",
                        "content": [{"type": "thinking", "thinking": "Three."}, {"type": "text", "text": "3"}],
                    },
                    {"role": "user", "content": "Thanks"},
                ],
                "tools": TOOLS,
                "strict_tools": True,
                "tool_choice": "REQUIRED",
                "thinking": {"type": "enabled"},
            },
            TranslatedRequest(
                "chat",
                {
                    "model": "command",
                    "messages": [
                        {"role": "system", "content": "Be brief."},
                        {
                            "role": "user",
                            "content": [{"type": "text", "text": "Sales?"}, {"type": "text", "text": " Now."}],
                        },
                        {
                            "role": "assistant",
                            "content": [{"type": "text", "text": "I will look."}],
                            "tool_calls": [CALL],
                        },
                        {
                            "role": "tool",
                            "tool_call_id": "sales_1",
                            "content": [{"type": "text", "text": '{"sales": 3}'}],
                        },
                        {
                            "role": "assistant",
                            "content": [{"type": "text", "text": "3"}],
                            "reasoning_content": "Three.",
                        },
                        {"role": "user", "content": "Thanks"},
                    ],
                    "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}],
                    "tool_choice": "required",
                },
                thinking=True,
            ),
        ),
        RouteExample(
            {
                "model": "command",
                "messages": HELLO,
                "tools": TOOLS,
                "tool_choice": "NONE",
                "response_format": {"type": "json_object"},
            },
            TranslatedRequest(
                "chat",
                {
                    "model": "command",
                    "messages": HELLO,
                    "tools": TOOLS,
                    "tool_choice": "none",
                    "response_format": {"type": "json_object"},
                },
            ),
        ),
        RouteExample(
            {**ASKED, "response_format": {"type": "json_object", "json_schema": PARAMETERS}},
            TranslatedRequest(
                "chat",
                {
                    **ASKED,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": PARAMETERS}},
                },
            ),
        ),
        RouteExample({"messages": HELLO}, refused="model"),
        RouteExample({"model": "command", "messages": []}, refused="messages"),
        RouteExample({**ASKED, "max_tokens": 0}, refused="max_tokens"),
        RouteExample({**ASKED, "seed": -1}, refused="seed"),
        RouteExample({**ASKED, "temperature": -0.1}, refused="temperature"),
        RouteExample({**ASKED, "k": 501}, refused="k"),
        RouteExample({**ASKED, "p": 1.0}, refused="p"),
        RouteExample({**ASKED, "p": 0}, refused="p"),
        RouteExample({**ASKED, "frequency_penalty": 1.1}, refused="frequency_penalty"),
        RouteExample({**ASKED, "presence_penalty": -0.1}, refused="presence_penalty"),
        RouteExample({**ASKED, "stop_sequences": list("abcdef")}, refused="stop_sequences"),
        RouteExample({**ASKED, "stop_sequences": [""]}, refused="stop_sequences"),
        RouteExample({**ASKED, "tool_choice": "REQUIRED"}, refused="tool_choice"),
    ),
    oracle=rendered,
    errors={status: Frame({"id": ..., "message": MESSAGE}, "error") for status in (400, 404, 500)},
)
