"""The common fields of chat and text completions, and their conversion to the engine's sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from llmk.api import RequestError
from llmk.engine.wire.request import SamplingParams
from llmk.serve.protocol.base import Body, Entries, Refused, RequestModel

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Text = Annotated[str, Field(min_length=1)]
Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]

_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields whose defaults are from the checkpoint's generation config."""

COMMON_REFUSED = {
    "service_tier": Refused("there is one tier", ("auto", "default")),
    "store": Refused("nothing is stored", (False,)),
    "prompt_cache_retention": Refused("the prefix cache keeps what there is room for", ("in_memory", "in-memory")),
    "prompt_cache_options": Refused("the prefix cache has no options per request"),
    "best_of": Refused("choices are not ranked; use 'n'", (1,)),
}


class StreamOptions(RequestModel):
    """``stream_options``."""

    refused: ClassVar = {"include_obfuscation": Refused("chunks are not padded", (False,))}

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Send the token counts so far with every chunk."""


class SamplingFields(Body):
    """Fields for sampling, for when to stop, and for how the response is sent."""

    model: str | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: Text | Entries[Text] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    stop_token_ids: Entries[TokenId] = Field(default_factory=list)
    ignore_eos: bool = False
    allowed_token_ids: Entries[int] | None = None
    bad_words: Entries[Text] = Field(default_factory=list)
    logits_processors: dict[str, dict[str, Any]] = Field(default_factory=dict)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    cache_salt: str = ""
    user: str | None = None
    """An id of the end user. It has no effect on the response; nor have the three fields below."""
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @field_validator("top_k")
    @classmethod
    def _off_is_zero(cls, value: int) -> int:
        return 0 if value == -1 else value

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            message = "'stream_options' is for streamed responses only; set 'stream'"
            raise PydanticCustomError("invalid_value", message, {"field": "stream_options"})
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a streamed response ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a streamed response has the token counts so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sampling_params(
        self,
        defaults: SamplingParams,
        max_tokens: int | None,
        logprobs: int | None,
        *,
        prompt_logprobs: int | None = None,
        special: bool = False,
    ) -> SamplingParams:
        """The engine's sampling parameters. ``special``: a parser needs special tokens in the text, which overrides
        ``skip_special_tokens``.

        Raises :class:`~llmk.api.RequestError` with the field.
        """
        chosen = {name: getattr(self, name) for name in _DEFAULTED}
        return SamplingParams(
            **{name: getattr(defaults, name) if value is None else value for name, value in chosen.items()},
            n=self.n,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            include_stop=self.include_stop_str_in_output,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words),
            logits_processors=self.logits_processors,
            logit_bias=_bias(self.logit_bias),
            skip_special_tokens=self.skip_special_tokens and not special,
        )


def _bias(logit_bias: Mapping[str, float]) -> dict[int, float]:
    for key in logit_bias:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise RequestError(f"logit_bias: {key!r} is not a token id", param="logit_bias")
    return {int(key): value for key, value in logit_bias.items()}
