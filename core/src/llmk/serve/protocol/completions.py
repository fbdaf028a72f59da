"""``/v1/completions``: a prompt, or several, as text, tokens or embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol.base import Entries, Refused, invalid
from llmk.serve.protocol.sampling import COMMON_REFUSED, SamplingFields, TokenId

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class CompletionRequest(SamplingFields):
    """The body of a text completion."""

    refused: ClassVar = {**COMMON_REFUSED, "suffix": Refused("text can't be filled in", ("",))}
    hints: ClassVar = {"messages": "POST /v1/chat/completions takes them; this route has 'prompt'"}

    prompt: str | Entries[str] | Entries[TokenId] | Entries[Entries[TokenId]] | None = None
    prompt_embeds: str | Entries[str] | None = None
    """In base64, a safetensors file with one tensor ``[length, hidden]`` for each prompt."""
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.prompt_embeds is not None:
            self._check_embeddings()
        elif self.prompt is None:
            raise PydanticCustomError("missing", "Field required", {"field": "prompt"})
        elif not self.prompt or (isinstance(self.prompt, list) and not all(prompt != [] for prompt in self.prompt)):
            raise PydanticCustomError("invalid_value", "'prompt' is empty", {"field": "prompt"})
        return self

    def _check_embeddings(self) -> None:
        if self.prompt:  # clients that can't leave it out send an empty text
            raise invalid("prompt_embeds", "'prompt' and 'prompt_embeds' can't both be given; send two requests")
        if not self.embeddings:
            raise invalid("prompt_embeds", "'prompt_embeds' is empty")
        if self.echo:
            raise invalid("echo", "'prompt_embeds' have no text that could be echoed")

    @property
    def embeddings(self) -> list[str]:
        """The prompts that are given as embeddings, one entry each."""
        found = self.prompt_embeds
        return [found] if isinstance(found, str) else found or []

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one entry each."""
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt] if self.prompt else []
        tokens = [item for item in self.prompt if isinstance(item, int)]
        return [tokens] if tokens else [item for item in self.prompt if not isinstance(item, int)]
