"""Schemas of responses for the OpenAPI document. Responses are created as plain data; tests validate them with
these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of the schemas of responses, which have no other fields."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class ErrorBody(Answer):
    """An error. ``param`` is the path of the invalid field; ``code`` is stable."""

    message: str
    type: str
    param: str | None
    code: str


class Restarting(Answer):
    """Since when the engine is being restarted, why, and the number of attempts."""

    since: str
    cause: str
    attempts: int


class ErrorAnswer(Answer):
    """The response to a request that failed."""

    error: ErrorBody
    restarting: Restarting | None = Field(default=None, json_schema_extra={"description": "Only in /health."})


class PromptDetails(Answer):
    """The number of prompt tokens that were cached."""

    cached_tokens: int


class CompletionDetails(Answer):
    """The number of generated tokens that were reasoning."""

    reasoning_tokens: int


class UsageAnswer(Answer):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TokenAnswer(Answer):
    """A token and its log-probability; ``bytes`` may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenAnswer(TokenAnswer):
    """The chosen token, and the most likely tokens at its position."""

    top_logprobs: list[TokenAnswer]


class ChatLogprobs(Answer):
    """Log-probabilities of a message."""

    content: list[ChosenAnswer]
    refusal: None


class CalledFunction(Answer):
    """The function that is called, and its arguments as JSON."""

    name: str
    arguments: str


class CallAnswer(Answer):
    """A tool call."""

    index: int
    id: str
    type: Literal["function"]
    function: CalledFunction


class MessageAnswer(Answer):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[CallAnswer] = Field(default_factory=list)


class ChatChoice(Answer):
    """One choice of a chat completion."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None


class Completion(Answer):
    """The common fields of complete responses."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageAnswer


class ChatAnswer(Completion):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextLogprobs(Answer):
    """Log-probabilities of a text, in parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    """One choice of a text completion."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None


class TextAnswer(Completion):
    """A text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ModelAnswer(Answer):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    capabilities: list[str]


class ModelsAnswer(Answer):
    """The served models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class TokensAnswer(Answer):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] = Field(default_factory=list)


class PromptAnswer(Answer):
    """The text of tokens."""

    prompt: str


class PinAnswer(Answer):
    """A pinned prefix; ``expires_at`` is in seconds since 1970."""

    id: str
    object: Literal["cache.pin"]
    tokens: int
    expires_at: float | None
    cache_salt: str
    tenant: str


class PinsAnswer(Answer):
    """The pinned prefixes."""

    data: list[PinAnswer]


class UnpinnedAnswer(Answer):
    """A pin that was removed."""

    id: str
    deleted: Literal[True]


class ProcessorAnswer(Answer):
    """An IO processor, and why it can or can't serve the model."""

    id: str
    name: str
    wheel: str
    summary: str
    supported: bool
    reasons: Any


class ProcessorsAnswer(Answer):
    """The installed IO processors."""

    object: Literal["list"]
    data: list[ProcessorAnswer]


class InputTokensAnswer(Answer):
    """The number of tokens of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ConversationAnswer(Answer):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedAnswer(Answer):
    """A response or conversation that was deleted."""

    id: str
    object: Literal["response", "conversation.deleted"]
    deleted: Literal[True]


class ItemsAnswer(Answer):
    """A page of items, which are OpenAI's objects."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class HealthAnswer(Answer):
    """The engine is healthy."""

    status: Literal["ok"]


class ServedAnswer(Answer):
    """The served model, and the kinds of grammars that can be enforced."""

    id: str
    adapters: list[str]
    max_model_len: int
    vocab_size: int
    grammars: list[str]


class ServerAnswer(Answer):
    """What is served, and the limits of a request."""

    version: str
    model: ServedAnswer
    limits: dict[str, int]


class VersionAnswer(Answer):
    """The version of llmk."""

    version: str
