"""``/v1/chat/completions``: messages, tools and switches."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol.base import Refused, RequestModel, unsupported
from llmk.serve.protocol.sampling import COMMON_REFUSED, SamplingFields

UNTIL_STRUCTURED = "it needs structured output, which is not built yet"
ROLE_FIELDS = {"tool_calls": "assistant", "reasoning_content": "assistant", "tool_call_id": "tool"}


class TextPart(RequestModel):
    """A text part of a message's content; the only kind that is taken."""

    type: str
    text: str = ""

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") != "text":
            raise unsupported("type", f"parts of type {data.get('type')!r} can't be read; only text can")
        return data


class FunctionCall(RequestModel):
    """A call that the assistant made."""

    name: str
    arguments: str = ""


class ToolCall(RequestModel):
    """An entry of an assistant message's ``tool_calls``."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """Present where a client passes on a streamed call; the order of the list counts."""


class Message(RequestModel):
    """A message of the conversation so far."""

    refused: ClassVar = {
        "audio": Refused("audio can't be read"),
        "refusal": Refused("refusals are not kept apart from content", ("",)),
        "function_call": Refused("use 'tool_calls'"),
        "annotations": Refused("annotations can't be read", ([],)),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        for name, role in ROLE_FIELDS.items():
            if getattr(self, name) is not None and self.role != role:
                message = f"'{name}' belongs to messages of role {role}, not {self.role}"
                raise PydanticCustomError("invalid_value", "{message}", {"field": name, "message": message})
        if self.content is None and (self.role != "assistant" or not (self.tool_calls or self.reasoning_content)):
            raise PydanticCustomError("missing", "a message of this role needs content", {"field": "content"})
        return self

    @property
    def text(self) -> str | None:
        """The content as one text; parts stand on lines of their own."""
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content


class Function(RequestModel):
    """A function that the model may call."""

    refused: ClassVar = {"strict": Refused(UNTIL_STRUCTURED, (False,))}

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(RequestModel):
    """An entry of ``tools``."""

    type: Literal["function"]
    function: Function


class ChatRequest(SamplingFields):
    """The body of a chat completion."""

    refused: ClassVar = {
        **COMMON_REFUSED,
        "response_format": Refused(UNTIL_STRUCTURED, ({"type": "text"},)),
        "audio": Refused("the model writes text only"),
        "modalities": Refused("the model writes text only", (["text"],)),
        "functions": Refused("use 'tools'", ([],)),
        "function_call": Refused("use 'tool_choice'", ("none",)),
        "parallel_tool_calls": Refused("how many calls the model makes can't be limited", (True,)),
        "prediction": Refused("predicted output is not built"),
        "verbosity": Refused("the model has no such switch", ("medium",)),
        "web_search_options": Refused("there is no web search"),
        "moderation": Refused("there is no moderation"),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none"] = "auto"
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @model_validator(mode="before")
    @classmethod
    def _check_tool_choice(cls, data: Any) -> Any:
        choice = data.get("tool_choice") if isinstance(data, dict) else None
        if choice == "required" or isinstance(choice, dict):
            raise unsupported("tool_choice", UNTIL_STRUCTURED)
        return data

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("invalid_value", "'top_logprobs' needs 'logprobs'", {"field": "top_logprobs"})
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "'max_tokens' and 'max_completion_tokens' differ; set one of them"
            raise PydanticCustomError("invalid_value", message, {"field": "max_completion_tokens"})
        if self.continue_final_message and (self.add_generation_prompt or self.messages[-1].role != "assistant"):
            message = "'continue_final_message' needs an assistant message at the end, and no 'add_generation_prompt'"
            raise PydanticCustomError("invalid_value", message, {"field": "continue_final_message"})
        return self

    @property
    def num_logprobs(self) -> int | None:
        """The engine's ``logprobs``."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is told of: none with ``tool_choice: none``, so that it can't call any."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools]
