"""Bodies of Cohere's chat API, version 2."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from llmk.api import RequestError
from llmk.api.http.bodies import Entries, Fields, parse

Text = Annotated[str, Field(min_length=1)]

UNSUPPORTED = {
    "documents": "there is no retrieval; put documents into a message",
    "logprobs": "this route returns no log-probabilities",
    "raw_prompting": "prompts are made by the model's chat template",
}
"""Fields that are refused unless they are empty, and why."""


class TextPart(Fields):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingPart(Fields):
    """A thought, as a client sends it back."""

    type: Literal["thinking"]
    thinking: str


class Document(Fields):
    """A document, as text or as an object."""

    data: str | dict[str, Any]
    id: str | None = None


class DocumentPart(Fields):
    """A document in the result of a tool."""

    type: Literal["document"]
    document: Document


class CallFunction(Fields):
    """What was called. Arguments are JSON."""

    name: Text
    arguments: str = "{}"


class Call(Fields):
    """A call of an earlier answer."""

    id: Text
    type: Literal["function"] = "function"
    function: CallFunction


class Asked(Fields):
    """A message of the user, or of the system."""

    role: Literal["system", "user"]
    content: Text | Annotated[Entries[TextPart], Field(min_length=1)]


class Answered(Fields):
    """A message of the assistant. The plan is what it said before its calls."""

    role: Literal["assistant"]
    content: str | Entries[Annotated[TextPart | ThinkingPart, Field(discriminator="type")]] = ""
    tool_plan: str = ""
    tool_calls: Entries[Call] = Field(default_factory=list)
    taken = frozenset({"citations"})


class ToolResult(Fields):
    """What a tool returned."""

    role: Literal["tool"]
    tool_call_id: Text
    content: str | Entries[Annotated[TextPart | DocumentPart, Field(discriminator="type")]]


class Function(Fields):
    """What a tool does, and its parameters, a JSON schema."""

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
    """A tool."""

    type: Literal["function"]
    function: Function


class Thinking(Fields):
    """Whether the model should think."""

    type: Literal["enabled", "disabled"]
    refused: ClassVar = {"token_budget": "thinking has no budget of its own; use 'max_tokens'"}


class ResponseFormat(Fields):
    """What the answer must be."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None


class ChatBody(Fields):
    """The body of a request."""

    model: Text | None = None
    messages: Annotated[
        Entries[Annotated[Asked | Answered | ToolResult, Field(discriminator="role")]], Field(min_length=1)
    ]
    tools: Entries[Tool] = Field(default_factory=list)
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    response_format: ResponseFormat | None = None
    thinking: Thinking | None = None
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=100)
    p: float | None = Field(None, ge=0, le=1)
    k: int | None = Field(None, ge=0, le=500)
    seed: int | None = Field(None, ge=0, lt=2**63)
    frequency_penalty: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=0, le=1)
    stop_sequences: Annotated[Entries[Text], Field(max_length=5)] | None = None
    stream: bool = False
    taken = frozenset({"citation_options", "priority", "safety_mode", "strict_tools", *UNSUPPORTED})


def checked(body: Any) -> ChatBody:
    """The body of a request. Fields that it may not have are looked at first, so that errors name them."""
    if isinstance(body, dict):
        for name, value in body.items():
            if name in UNSUPPORTED and value:
                raise RequestError(f"{name} is not supported: {UNSUPPORTED[name]}", param=name)
            if name not in ChatBody.model_fields and name not in ChatBody.taken:
                raise RequestError(f"unknown field {name[:64]!r}", param=name)
    return parse(ChatBody, body)
