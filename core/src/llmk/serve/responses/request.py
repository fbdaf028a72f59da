"""The bodies of ``/v1/responses`` and ``/v1/responses/input_tokens``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, create_model, model_validator

from llmk.serve.protocol.base import Body, Entries, Refused, RequestModel, invalid
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.protocol.sampling import Key, Value
from llmk.serve.responses.items import InputItem, ItemId
from llmk.serve.responses.tools import ToolChoice, ToolItem

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
_NOT_PASSED = frozenset(
    {
        "add_generation_prompt",
        "audio",
        "continue_final_message",
        "function_call",
        "functions",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "reasoning_effort",
        "response_format",
        "store",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "top_logprobs",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of chat completions that the Responses API has under other names, or with other meanings."""
PASSED = tuple(name for name in ChatRequest.model_fields if name not in _NOT_PASSED)
"""Fields that are equal in both APIs, with what llmk adds to OpenAI's."""
HOSTED_INCLUDES = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""What responses never have, so that including it has no effect."""
_NO_HISTORY_TOGETHER = "'previous_response_id' and 'conversation' exclude each other: both are a history"

if TYPE_CHECKING:

    class PassedFields(Body):
        """The fields that code names; there is one for each field of :data:`PASSED`."""

        model: str | None
        metadata: dict[str, str] | None
        temperature: float | None
        top_p: float | None
        user: str | None
        safety_identifier: str | None
        prompt_cache_key: str | None

else:
    PassedFields = create_model(
        "PassedFields",
        __base__=Body,
        __module__=__name__,
        **{name: (field.annotation, field) for name, field in ChatRequest.model_fields.items() if name in PASSED},
    )
CHAT_REFUSED: dict[str, Refused] = {
    str(name): ChatRequest.refused[name]
    for name in ("prompt_cache_retention", "prompt_cache_options", "service_tier", "moderation")
    if name in ChatRequest.refused
}


NO_TRUNCATION = Refused("a conversation that is too long is refused, not cut; send fewer items", ("disabled",))


class Reasoning(RequestModel):
    """``reasoning``."""

    refused: ClassVar = {
        "context": Refused("the chat template decides which reasoning is part of the prompt", ("auto",)),
        "mode": Refused("there is one mode", ("standard",)),
        "summary": Refused("reasoning is not summarized; it is in the items' 'content'", ("auto",)),
        "generate_summary": Refused("reasoning is not summarized; it is in the items' 'content'", ("auto",)),
    }

    effort: str | None = None


class TextFormat(RequestModel):
    """``text.format``. Its ``schema`` is called ``json_schema`` here, since a model has a ``schema`` of its own."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "schema" not in data:
            return data
        if not isinstance(data["schema"], dict | None):
            raise invalid("schema", "a JSON schema is an object here")
        return {("json_schema" if name == "schema" else name): value for name, value in data.items()}

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        for field, given in (("name", self.name), ("schema", self.json_schema)):
            if self.type == "json_schema" and given is None:
                raise invalid(field, f"a format of type json_schema has a '{field}'")
            if self.type != "json_schema" and given is not None:
                raise invalid(field, f"a format of type {self.type} has no '{field}'")
        return self

    @property
    def chat(self) -> dict[str, Any]:
        """The ``response_format`` of a chat completion."""
        if self.type != "json_schema":
            return {"type": self.type}
        named = {"name": self.name, "description": self.description, "schema": self.json_schema, "strict": self.strict}
        return {"type": self.type, "json_schema": {key: value for key, value in named.items() if value is not None}}

    @property
    def shown(self) -> dict[str, Any]:
        """The format in a response."""
        named = {"name": self.name, "description": self.description, "schema": self.json_schema, "strict": self.strict}
        return {"type": self.type} | (named if self.type == "json_schema" else {})


class TextConfig(RequestModel):
    """``text``. ``verbosity`` is that of chat completions."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(RequestModel):
    """``stream_options``."""

    refused: ClassVar = {"include_obfuscation": Refused("events are not padded", (False,))}


class ConversationId(RequestModel):
    """A conversation, by its id."""

    id: ItemId


class HistoryFields(Body):
    """What both routes have: the conversation so far, and what is part of the prompt."""

    model: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    input: str | Entries[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    conversation: ItemId | ConversationId | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tools: Entries[ToolItem] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _check_history(self) -> Self:
        if self.previous_response_id is not None and self.conversation is not None:
            raise invalid("previous_response_id", _NO_HISTORY_TOGETHER)
        if self.input is None and self.previous_response_id is None and self.conversation is None:
            raise invalid("input", "give 'input', 'previous_response_id' or 'conversation'")
        return self

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation."""
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation


class ResponseRequest(PassedFields, HistoryFields):
    """The body of ``/v1/responses``: OpenAI's fields, and what llmk adds to those of chat completions."""

    refused: ClassVar = {
        **CHAT_REFUSED,
        "access_programs": Refused("there are no access programs"),
        "background_options": Refused(
            "a background response starts as soon as possible", ({}, {"completion_window": "soonest"})
        ),
        "context_management": Refused("llmk does not compact conversations", ([],)),
        "image": Refused("images can't be read"),
        "moderation": Refused("there is no moderation"),
        "truncation": NO_TRUNCATION,
        "prompt": Refused("there are no stored prompts; send the text as 'instructions' and 'input'"),
    }

    background: bool = False
    client_metadata: dict[str, Any] | None = None
    """What Codex says of itself; it has no effect."""
    include: Entries[Literal[LOGPROBS, ENCRYPTED, *HOSTED_INCLUDES]] = Field(default_factory=list)  # type: ignore[valid-type]
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    """Calls of hosted tools, of which there are none."""
    store: bool = True
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.background and not self.store:
            raise invalid("background", "a background response is stored; leave out 'store: false'")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "'stream_options' is for streamed responses only; set 'stream'")
        return self

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities were requested."""
        return bool(self.top_logprobs) or LOGPROBS in self.include


class InputTokensRequest(HistoryFields):
    """The body of ``/v1/responses/input_tokens``."""

    refused: ClassVar = {
        "personality": Refused("the model has one; write another in 'instructions'"),
        "truncation": NO_TRUNCATION,
    }


class ConversationRequest(Body):
    """The body of ``/v1/conversations``."""

    items: Entries[InputItem] = Field(default_factory=list)
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None


class ConversationUpdate(Body):
    """The body of ``/v1/conversations/{id}``."""

    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None


class ItemsRequest(Body):
    """The body of ``/v1/conversations/{id}/items``."""

    items: Annotated[Entries[InputItem], Field(min_length=1)]
