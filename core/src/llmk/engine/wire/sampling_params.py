"""Sampling parameters, each declared once: type, default, bounds, request field and documentation."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec.structs import force_setattr

from llmk.api.errors import RequestError
from llmk.engine.wire.grammar_params import GrammarParams


@dataclass(frozen=True, slots=True)
class Parameter:
    """What else is declared of a sampling parameter: the checks of its values, the field of HTTP requests, the flag of
    ``llmk run`` and ``chat``, and the documentation come from here.
    """

    summary: str
    low: float = -math.inf
    high: float = math.inf
    """Bounds of a number, inclusive."""
    http_name: str | None = ""
    """Name of the request field, the parameter's own where empty; ``None``: requests have no such field."""
    from_checkpoint: bool = False
    """Whether the checkpoint's ``generation_config.json`` is the default for requests that leave it out."""
    flag: bool = False
    on_logits: bool = False
    """Whether it acts on logits, or reads them, in a way that an executor of a plugin may lack
    (:attr:`llmk.api.ExecutorSpec.knows`)."""
    name: str = ""
    kind: Any = None
    default: Any = None
    """Name, type and default of the field, which :func:`parameters` fills in."""


_MAX_INT = 2**31


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen and when to stop. Raises :class:`~llmk.api.RequestError`, naming the field, for values of
    another type or out of range. ``stop`` and ``bad_words`` may be a single text.
    """

    n: Annotated[int, Parameter("choices per prompt", 1, 128)] = 1
    max_tokens: Annotated[
        int | None, Parameter("most tokens to generate; unset: up to the model's context", 1, _MAX_INT, flag=True)
    ] = None
    min_tokens: Annotated[
        int,
        Parameter(
            "tokens before which no end-of-sequence token, stop token or stop text ends it", 0, _MAX_INT, on_logits=True
        ),
    ] = 0
    temperature: Annotated[
        float, Parameter("0: always the most likely token", 0.0, 100.0, from_checkpoint=True, flag=True)
    ] = 1.0
    top_k: Annotated[
        int,
        Parameter(
            "keep this many of the most likely tokens; 0 or -1: all",
            -1,
            _MAX_INT,
            from_checkpoint=True,
            flag=True,
            on_logits=True,
        ),
    ] = 0
    top_p: Annotated[
        float,
        Parameter(
            "keep the most likely tokens whose probabilities add up to this; 0: the most likely one alone",
            0.0, 1.0, from_checkpoint=True, flag=True, on_logits=True,
        ),
    ] = 1.0  # fmt: skip
    min_p: Annotated[
        float,
        Parameter(
            "keep tokens at least this times as likely as the most likely one",
            0.0,
            1.0,
            from_checkpoint=True,
            on_logits=True,
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float, Parameter("subtracted from the logits of tokens that were generated", -2.0, 2.0, on_logits=True)
    ] = 0.0
    frequency_penalty: Annotated[
        float, Parameter("the same, for each time that a token was generated", -2.0, 2.0, on_logits=True)
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Parameter(
            "divides positive and multiplies negative logits of tokens of the prompt and the output",
            1e-6, 100.0, from_checkpoint=True, on_logits=True,
        ),
    ] = 1.0  # fmt: skip
    seed: Annotated[
        int | None,
        Parameter("seed of the random choices; unset: a random one", -(2**63), 2**63 - 1, flag=True),
    ] = None
    stop: Annotated[tuple[str, ...], Parameter("texts that end the output, and are not part of it", flag=True)] = ()
    include_stop: Annotated[
        bool, Parameter("the stop text is part of the output", http_name="include_stop_str_in_output")
    ] = False
    stop_token_ids: Annotated[tuple[int, ...], Parameter("tokens that end the output")] = ()
    ignore_eos: Annotated[bool, Parameter("end-of-sequence tokens do not end the output")] = False
    logprobs: Annotated[
        int | None,
        Parameter(
            "how many of the most likely tokens' log-probabilities are returned with that of the sampled one",
            0, 20, http_name=None, on_logits=True,
        ),
    ] = None  # fmt: skip
    prompt_logprobs: Annotated[
        int | None,
        Parameter(
            "the same for the prompt's tokens; the prompt then takes no prefix hits",
            0,
            20,
            http_name=None,
            on_logits=True,
        ),
    ] = None
    logit_bias: Annotated[
        dict[int, float], Parameter("added to the logits of tokens, by token id", on_logits=True)
    ] = {}
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        Parameter(
            "the only tokens that are sampled; must have an end-of-sequence token for the output to end by one",
            on_logits=True,
        ),
    ] = None
    bad_words: Annotated[
        tuple[str, ...],
        Parameter(
            "texts that are never generated as the tokenizer writes them, at the start of a word or inside one",
            on_logits=True,
        ),
    ] = ()
    bad_word_ids: Annotated[
        tuple[tuple[int, ...], ...],
        Parameter("token sequences that are never generated", http_name=None, on_logits=True),
    ] = ()
    logits_processors: Annotated[
        dict[str, dict[str, Any]], Parameter("parameters of logits processors, by the processor's id", on_logits=True)
    ] = {}
    structured_outputs: Annotated[
        GrammarParams | None,
        Parameter(
            "what the whole output matches: a regex, a choice, a JSON schema (json), or a grammar (lark)",
            on_logits=True,
        ),
    ] = None
    skip_special_tokens: Annotated[bool, Parameter("special tokens have no text")] = True

    def __post_init__(self) -> None:
        for parameter in parameters():
            self._check(parameter)
        if self.top_p == 0.0:
            force_setattr(self, "top_p", _LEAST_TOP_P)
        if self.top_k == -1:
            force_setattr(self, "top_k", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})", param="min_tokens"
            )
        for token, value in self.logit_bias.items():
            if not value < math.inf:
                raise RequestError(f"logit_bias of token {token} is {value}", param="logit_bias")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids allows no token", param="allowed_token_ids")
        if not all(self.bad_words) or not all(self.bad_word_ids):
            raise RequestError("bad_words has an empty entry", param="bad_words")
        if not all(self.stop):
            raise RequestError("stop has an empty entry", param="stop")
        if self.structured_outputs is not None and self.ignore_eos:
            what = "ignore_eos can't be combined with structured_outputs: the output ends where its grammar does"
            raise RequestError(what, param="ignore_eos")

    def _check(self, parameter: Parameter) -> None:
        """Converts a value to the parameter's type (lists become tuples, a single text a tuple of it), and checks its
        bounds."""
        field = parameter.name
        value = getattr(self, field)
        if isinstance(value, str) and field in ("stop", "bad_words"):
            value = (value,)
        try:
            value = msgspec.convert(value, parameter.kind)
        except msgspec.ValidationError as error:
            raise RequestError(f"{field} can't be {reprlib.repr(value)}: {error}", param=field) from None
        low, high = parameter.low, parameter.high
        if low > -math.inf and value is not None and not (low <= value <= high and math.isfinite(value)):
            raise RequestError(f"{field} must be between {low} and {high}, not {value}", param=field)
        force_setattr(self, field, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


_LEAST_TOP_P = 1e-9
"""Less than any most likely token's probability, so that this token alone is kept."""


@cache
def parameters() -> tuple[Parameter, ...]:
    """The declarations of all sampling parameters."""
    hints = get_type_hints(SamplingParams, include_extras=True)
    found = []
    for field in msgspec.structs.fields(SamplingParams):
        kind, declared = get_args(hints[field.name])
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        found.append(dataclasses.replace(declared, name=field.name, kind=kind, default=default))
    return tuple(found)
