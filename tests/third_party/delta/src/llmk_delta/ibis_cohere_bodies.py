"""Bodies of requests of Cohere's chat API, version 2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from llmk.api.http.bodies import Entries, Fields, fault


class Text(Fields):
    """A text in a message."""

    type: Literal["text"]
    text: str


class Thinking(Fields):
    """What the assistant thought."""

    type: Literal["thinking"]
    thinking: str


class DocumentData(Fields):
    """What a tool found."""

    data: str | dict[str, Any]
    id: str = ""


class Document(Fields):
    """A document in the result of a tool."""

    type: Literal["document"]
    document: DocumentData


class CalledFunction(Fields):
    """The function of a call; ``arguments`` are JSON."""

    name: str = Field(min_length=1)
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, value: str) -> str:
        try:
            arguments = json.loads(value)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise fault("must be the JSON of an object")
        return value


class Call(Fields):
    """A call that the assistant made."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(Fields):
    """What the system says."""

    role: Literal["system"]
    content: str | Entries[Text]


class UserMessage(Fields):
    """What the user says."""

    role: Literal["user"]
    content: str | Entries[Text]


class AssistantMessage(Fields):
    """What the assistant said; ``tool_plan`` is what it said before its calls."""

    taken: ClassVar[frozenset[str]] = frozenset({"citations"})

    role: Literal["assistant"]
    content: str | Entries[Annotated[Text | Thinking, Field(discriminator="type")]] | None = None
    tool_plan: str = ""
    tool_calls: Entries[Call] = Field(default_factory=list)


class ToolMessage(Fields):
    """What a tool returned."""

    role: Literal["tool"]
    tool_call_id: str
    content: str | Entries[Annotated[Text | Document, Field(discriminator="type")]]


class Function(Fields):
    """A function that may be called."""

    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class Tool(Fields):
    """A tool."""

    type: Literal["function"] = "function"
    function: Function


class ResponseFormat(Fields):
    """What the answer must be."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None


class ThinkingSwitch(Fields):
    """Whether the model thinks."""

    refused: ClassVar[Mapping[str, str]] = {"token_budget": "thoughts have no limit of their own"}

    type: Literal["enabled", "disabled"]


class ChatBody(Fields):
    """The body of a request."""

    taken: ClassVar[frozenset[str]] = frozenset({"safety_mode", "citation_options"})
    refused: ClassVar[Mapping[str, str]] = {
        "documents": "nothing is retrieved or cited",
        "logprobs": "log-probabilities are not sent",
        "raw_prompting": "use /v1/completions",
    }

    model: str = Field(min_length=1)
    messages: Entries[
        Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
    ] = Field(min_length=1)
    stream: bool = False
    tools: Entries[Tool] = Field(default_factory=list)
    strict_tools: bool = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    response_format: ResponseFormat | None = None
    thinking: ThinkingSwitch | None = None
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    stop_sequences: Entries[str] = Field([], max_length=5)
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    seed: int | None = Field(None, ge=0, lt=2**63)
    frequency_penalty: float | None = Field(None, ge=0.0, le=1.0)
    presence_penalty: float | None = Field(None, ge=0.0, le=1.0)
    k: int | None = Field(None, ge=0, le=500)
    p: float | None = Field(None, ge=0.01, le=0.99)
    priority: int | None = Field(None, ge=0, le=999)

    @field_validator("stop_sequences")
    @classmethod
    def _not_empty(cls, value: Sequence[str]) -> Sequence[str]:
        if "" in value:
            raise fault("a stop sequence must not be empty")
        return value
