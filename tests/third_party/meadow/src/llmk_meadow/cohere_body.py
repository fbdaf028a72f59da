"""The body of Cohere's chat API, version 2, and what it is in terms of chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from llmk.api import RequestError
from llmk.api.http.bodies import Entries, Fields

REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}
CHOICES = {"REQUIRED": "required", "NONE": "none"}


class TextPart(Fields):
    """A piece of text."""

    type: Literal["text"]
    text: str


class Function(Fields):
    """What is called, or can be."""

    name: str = Field(min_length=1)
    arguments: str = "{}"
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class Call(Fields):
    """A call that the model made."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class Tool(Fields):
    """A tool that it may call."""

    type: Literal["function"] = "function"
    function: Function


class System(Fields):
    """What holds for all of the conversation."""

    role: Literal["system", "developer"]
    content: str | Entries[TextPart]


class User(Fields):
    """What the user says."""

    role: Literal["user"]
    content: str | Entries[TextPart]


class Assistant(Fields):
    """What the model said."""

    role: Literal["assistant"]
    content: str | Entries[TextPart] | None = None
    tool_plan: str | None = None
    tool_calls: Entries[Call] = Field(default_factory=list)


class ToolResult(Fields):
    """What a tool returned."""

    role: Literal["tool"]
    tool_call_id: str
    content: str | Entries[TextPart]


Message = Annotated[System | User | Assistant | ToolResult, Field(discriminator="role")]


class ResponseFormat(Fields):
    """JSON, or text."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None


class ChatBody(Fields):
    """The fields of a request."""

    taken: ClassVar[frozenset[str]] = frozenset({"safety_mode", "priority"})
    refused: ClassVar[Mapping[str, str]] = {
        "documents": "put them into a message",
        "citation_options": "there are no citations",
        "logprobs": "use /v1/chat/completions",
    }

    model: str
    messages: Entries[Message] = Field(min_length=1)
    stream: bool = False
    tools: Entries[Tool] = Field(default_factory=list)
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    strict_tools: bool = False
    response_format: ResponseFormat | None = None
    max_tokens: int | None = Field(None, ge=1)
    stop_sequences: Entries[str] = Field(default_factory=list, max_length=5)
    temperature: float = Field(0.3, ge=0, le=1)
    p: float = Field(0.75, ge=0.01, le=0.99)
    k: int = Field(0, ge=0, le=500)
    seed: int | None = Field(None, ge=0)
    frequency_penalty: float = Field(0, ge=0, le=1)
    presence_penalty: float = Field(0, ge=0, le=1)


def text_of(content: str | list[TextPart] | None) -> str:
    """The whole text of a content."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def assistant(message: Assistant) -> dict[str, Any]:
    """What the model said: its plan is text before calls."""
    plan, text = message.tool_plan or "", text_of(message.content)
    said: dict[str, Any] = {"role": "assistant", "content": plan + text}
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    return said


def message_of(message: System | User | Assistant | ToolResult) -> dict[str, Any]:
    """A message of chat completions."""
    if isinstance(message, Assistant):
        return assistant(message)
    text = text_of(message.content)
    if isinstance(message, ToolResult):
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}
    return {"role": message.role if message.role == "user" else "system", "content": text}


def check_calls(body: ChatBody) -> None:
    """Arguments of earlier calls are JSON objects, and results belong to calls."""
    called: set[str] = set()
    for at, message in enumerate(body.messages):
        if isinstance(message, Assistant):
            for number, call in enumerate(message.tool_calls):
                called.add(call.id)
                if not is_object(call.function.arguments):
                    where = f"messages.{at}.tool_calls.{number}.function.arguments"
                    raise RequestError(f"{where}: must be the JSON text of an object", param=where)
        elif isinstance(message, ToolResult) and message.tool_call_id not in called:
            where = f"messages.{at}.tool_call_id"
            raise RequestError(f"{where}: no call before it has this id", param=where)


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def tool_of(tool: Tool, strict: bool) -> dict[str, Any]:
    """A tool of chat completions."""
    function = tool.function
    described = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": "function", "function": {**described, "strict": strict}}


def format_of(wanted: ResponseFormat) -> dict[str, Any]:
    """A response format of chat completions."""
    if wanted.type == "json_object" and wanted.json_schema is not None:
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": wanted.json_schema}}
    return {"type": wanted.type}


def chat_of(body: ChatBody) -> dict[str, Any]:
    """The body of chat completions."""
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": [message_of(message) for message in body.messages],
        "temperature": body.temperature,
        "top_p": body.p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
    }
    if body.k:
        chat["top_k"] = body.k
    if body.seed is not None:
        chat["seed"] = body.seed
    if body.max_tokens is not None:
        chat["max_tokens"] = body.max_tokens
    if body.stop_sequences:
        chat["stop"] = list(body.stop_sequences)
    if body.tools:
        chat["tools"] = [tool_of(tool, body.strict_tools) for tool in body.tools]
    if body.tool_choice is not None:
        chat["tool_choice"] = CHOICES[body.tool_choice]
    if body.response_format is not None:
        chat["response_format"] = format_of(body.response_format)
    return chat
