"""``/v1/completions``: a prompt, or several, as text or tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol.base import Entries, Refused
from llmk.serve.protocol.sampling import COMMON_REFUSED, SamplingFields, TokenId

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class CompletionRequest(SamplingFields):
    """The body of a text completion."""

    refused: ClassVar = {**COMMON_REFUSED, "suffix": Refused("text can't be filled in", ("",))}

    prompt: str | Entries[str] | Entries[TokenId] | Entries[Entries[TokenId]]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.prompt or (isinstance(self.prompt, list) and not all(prompt != [] for prompt in self.prompt)):
            raise PydanticCustomError("invalid_value", "'prompt' is empty", {"field": "prompt"})
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one entry each."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [item for item in self.prompt if isinstance(item, int)]
        return [tokens] if tokens else [item for item in self.prompt if not isinstance(item, int)]
