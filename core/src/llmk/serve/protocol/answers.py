"""The shapes of answers, for the OpenAPI document. Answers are made as plain data; tests hold them against these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of answers' shapes: each lists all of its fields."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Answer):
    """What went wrong: ``param`` is the path of the field at fault, and ``code`` is stable."""

    message: str
    type: str
    param: str | None
    code: str


class Restarting(Answer):
    """Since when the engine is being started again, why, and in how many attempts."""

    since: str
    cause: str
    attempts: int


class ErrorAnswer(Answer):
    """The answer to a request that failed."""

    error: ErrorBody
    restarting: Restarting | None = Field(default=None, json_schema_extra={"description": "Of /health alone."})


class PromptDetails(Answer):
    """Of the prompt's tokens, those that were cached."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Of the tokens that were generated, those that were thinking."""

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
    """The token that was chosen, and the likeliest in its place."""

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
    """One answer to a conversation."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None


class Whole(Answer):
    """What all whole answers have."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageAnswer


class ChatAnswer(Whole):
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
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None


class TextAnswer(Whole):
    """A text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ModelAnswer(Answer):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelsAnswer(Answer):
    """The models that are served."""

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
    """A prefix that stays in the cache; ``expires_at`` in seconds since 1970."""

    id: str
    object: Literal["cache.pin"]
    tokens: int
    expires_at: float | None
    cache_salt: str
    tenant: str


class PinsAnswer(Answer):
    """The prefixes that stay in the cache."""

    data: list[PinAnswer]


class UnpinnedAnswer(Answer):
    """A pin that was ended."""

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
    """The IO processors that are installed."""

    object: Literal["list"]
    data: list[ProcessorAnswer]


class HealthAnswer(Answer):
    """The engine's loop answers."""

    status: Literal["ok"]


class VersionAnswer(Answer):
    """The version of llmk."""

    version: str
