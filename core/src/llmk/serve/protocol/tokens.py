"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol.base import Body, Entries
from llmk.serve.protocol.chat import Message, Tool, check_names
from llmk.serve.protocol.sampling import TokenId


class TokenizeRequest(Body):
    """A prompt, or a conversation that is rendered first. The default of ``add_special_tokens`` is true for prompts and
    false for conversations."""

    model: str | None = None
    prompt: str | None = None
    messages: Entries[Message] | None = None
    tools: Entries[Tool] = Field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise PydanticCustomError("invalid_value", "give either 'prompt' or 'messages'", {"field": "prompt"})
        check_names(self.tools)
        return self


class DetokenizeRequest(Body):
    """Token ids to be decoded, including special tokens."""

    model: str | None = None
    tokens: Entries[TokenId]
