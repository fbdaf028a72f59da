"""The common fields of chat and text completions, and their conversion to the engine's sampling parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StrictBool, create_model, model_validator
from pydantic_core import PydanticCustomError

from llmk.api import RequestError
from llmk.engine.wire.sampling_params import Parameter, SamplingParams, parameters
from llmk.serve.protocol.base import Body, Entries, Refused, RequestModel
from llmk.serve.protocol.structured import ResponseFormat, StructuredOutputs, Text, given_grammars

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]


_JSON_TYPES: dict[str, Any] = {
    "stop": Text | Entries[Text],
    "stop_token_ids": Entries[TokenId],
    "allowed_token_ids": Entries[int] | None,
    "bad_words": Entries[Text],
    "structured_outputs": StructuredOutputs | None,
    "logit_bias": dict[str, Annotated[float, Field(ge=-100, le=100)]],
}
"""Types of request fields where JSON's is not the parameter's own."""
_REQUESTED = [parameter for parameter in parameters() if parameter.http_name is not None]
"""The sampling parameters that requests have fields for."""

_OLD_NAME: Any = Field(default=None, description="the same as 'structured_outputs' with that kind")
_NO_EFFECT: Any = Field(default=None, description="no effect on the answer")

COMMON_REFUSED = {
    "store": Refused("nothing is stored", (False,)),
    "best_of": Refused("choices are not ranked; use 'n'", (1,)),
}


class StreamOptions(RequestModel):
    """``stream_options``."""

    refused: ClassVar = {"include_obfuscation": Refused("chunks are not padded", (False,))}

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Send the token counts so far with every chunk."""


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Type and default of the request field of a sampling parameter, with what the API's description says of it."""
    kind, default = _JSON_TYPES.get(parameter.name, parameter.kind), parameter.default
    if parameter.from_checkpoint:
        kind, default = kind | None, None
    bounds = {"minimum": parameter.low, "maximum": parameter.high} if parameter.low > -math.inf else {}
    about: dict[str, Any] = {"description": parameter.summary, "json_schema_extra": bounds or None}
    if isinstance(default, tuple | dict):
        return kind, Field(default_factory=list if isinstance(default, tuple) else dict, **about)
    return kind, Field(default=default, **about)


if TYPE_CHECKING:

    class SamplingParamFields(Body):
        """The fields that code names; there is one for each sampling parameter."""

        n: int
        max_tokens: int | None
        logits_processors: dict[str, dict[str, Any]]

else:
    SamplingParamFields = create_model(
        "SamplingParamFields",
        __base__=Body,
        __module__=__name__,
        **{parameter.http_name or parameter.name: _field(parameter) for parameter in _REQUESTED},
    )


class SamplingFields(SamplingParamFields):
    """Everything about how tokens are chosen, when to stop, and how the answer is sent."""

    model: str | None = Field(default=None, description="the name of the served model")
    stream: bool = Field(default=False, description="send the answer as server-sent events")
    stream_options: StreamOptions | None = Field(default=None, description="for streamed answers only")
    priority: int = Field(
        default=0, ge=-(2**31), le=2**31 - 1, description="lower is sooner, where the scheduling policy respects it"
    )
    cache_salt: str = Field(default="", description="requests with different salts share no cached prefix")
    response_format: ResponseFormat | None = Field(default=None, description="what the content must be")
    unenforceable: Literal["refuse", "warn"] | None = Field(
        default=None,
        description="schemas that can't be enforced are refused, or enforced without the keywords in the response's "
        "header x-llmk-unenforced; the server's default is server.unenforceable, and 'refuse' for strict schemas",
    )
    guided_json: dict[str, Any] | StrictBool | str | None = _OLD_NAME
    guided_regex: str | None = _OLD_NAME
    guided_choice: Entries[Text] | None = _OLD_NAME
    guided_grammar: Text | None = _OLD_NAME
    user: str | None = _NO_EFFECT
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = _NO_EFFECT
    safety_identifier: str | None = _NO_EFFECT
    prompt_cache_key: str | None = Field(
        default=None, description="requests with the same one go to the same replica, as long as work stays even"
    )
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = _NO_EFFECT
    prompt_cache_options: dict[str, Any] | None = _NO_EFFECT
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = _NO_EFFECT

    @property
    def grammar(self) -> tuple[str, dict[str, Any]] | None:
        """What the content must match, and the field that says so. Raises :class:`~llmk.api.RequestError` if two do."""
        found = given_grammars(self)
        if len(found) > 1:
            what = f"{' and '.join(found)} can't both be given; set one of them"
            raise RequestError(what, param=list(found)[-1])
        return next(iter(found.items()), None)

    @property
    def has_strict_format(self) -> bool:
        """Whether ``response_format`` has a strict schema."""
        form = self.response_format
        return form is not None and form.json_schema is not None and form.json_schema.strict

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
        given = {parameter.name: getattr(self, parameter.http_name or parameter.name) for parameter in _REQUESTED}
        given |= {p.name: getattr(defaults, p.name) for p in _REQUESTED if p.from_checkpoint and given[p.name] is None}
        given |= {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
        given["logit_bias"] = _bias(given["logit_bias"])
        given["skip_special_tokens"] &= not special
        given["structured_outputs"] = None
        return SamplingParams(**given)


def _bias(logit_bias: Mapping[str, float]) -> dict[int, float]:
    for key in logit_bias:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise RequestError(f"logit_bias: {key!r} is not a token id", param="logit_bias")
    return {int(key): value for key, value in logit_bias.items()}
