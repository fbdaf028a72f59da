"""What a request asks for, and what it gets back, in the form that crosses the process boundary."""

from __future__ import annotations

import math
import reprlib
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import msgspec
from msgspec.structs import force_setattr

from llmk.api.errors import RequestError

if TYPE_CHECKING:
    from llmk.engine.wire.cost import Cost

FinishReason = Literal["stop", "length", "abort", "error"]
Returns = Literal["tokens", "prompt_logprobs", "hidden", "last_hidden"]
"""What comes of a sequence: tokens; or, with nothing sampled, what is told of its prompt's tokens alone: their
log-probabilities, the hidden states of all of them or of the last."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen and when to stop. Raises :class:`~llmk.api.RequestError`, naming the field, for values of
    another type or out of range. A text alone stands for one in ``stop`` and ``bad_words``.
    """

    n: int = 1
    """Completions per prompt."""
    max_tokens: int | None = None
    """Most tokens to generate; ``None``: up to the model's context."""
    min_tokens: int = 0
    """Tokens before which neither eos nor one of ``stop_token_ids`` is sampled."""
    temperature: float = 1.0
    """0: greedy."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the likeliest tokens whose probabilities add up to this; 0: the likeliest alone."""
    min_p: float = 0.0
    """Keep tokens at least this times as likely as the likeliest."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the output; not part of it unless ``include_stop``."""
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of likeliest tokens whose log-probabilities are returned beside the sampled one's; ``None``: none at
    all.
    """
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens. The prompt is then computed in full, whatever the prefix cache has."""
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be sampled; with one that ends the text, where the text is to end by itself."""
    bad_words: tuple[str, ...] = ()
    """Texts that the output must not contain as the tokenizer writes them, at the start of a word or inside one."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain."""
    logits_processors: dict[str, dict[str, Any]] = {}
    """Ids of logits processors, with the parameters of each."""
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._take_types()
        for field, low, high in _BOUNDS:
            value = getattr(self, field)
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                raise RequestError(f"{field} must be between {low} and {high}, not {value}", param=field)
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
            raise RequestError("bad_words has an empty one", param="bad_words")
        if not all(self.stop):
            raise RequestError("stop has an empty one", param="stop")

    def _take_types(self) -> None:
        """Sets every field to what its type makes of it: lists become tuples, a text one of its kind."""
        for field, kind in _types().items():
            value = getattr(self, field)
            if isinstance(value, str) and field in ("stop", "bad_words"):
                value = (value,)
            try:
                value = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise RequestError(f"{field} can't be {reprlib.repr(value)}: {error}", param=field) from None
            force_setattr(self, field, value)
        if self.top_p == 0.0:
            force_setattr(self, "top_p", _LEAST_TOP_P)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0


_LEAST_TOP_P = 1e-9
"""Less than any likeliest token's probability, so that it is the only one that is kept."""


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(SamplingParams, {"Any": Any})


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("n", 1, 128),
    ("max_tokens", 1, 2**31),
    ("min_tokens", 0, 2**31),
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 2**31),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 1e-6, 100.0),
    ("logprobs", 0, 20),
    ("prompt_logprobs", 0, 20),
)


class EngineRequest(msgspec.Struct, kw_only=True):
    """One sequence to be generated (a request with ``n`` > 1 becomes ``n`` of these)."""

    id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    seed: int = 0
    """Always set by the front end, so that sampling does not depend on the batch."""
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    """Whose it is, for shares and limits; ``""`` where the server asks for no key."""
    pin: str = ""
    """Id under which its prompt is to stay in the cache once it is computed, in place of what that id pinned before."""
    pin_seconds: float = 0.0
    """How long; 0: without end."""
    request_id: str = ""
    """Of the request that it is for: what the log calls it."""
    returns: Returns = "tokens"
    num_told: int = 0
    """Prompt tokens whose hidden states an engine before this one delivered."""
    generated_token_ids: list[int] = []
    """Tokens that an engine before this one delivered: the sequence goes on after them as if nothing had happened."""
    age: float = 0.0
    """Seconds that it was with engines before this one."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural-log probabilities at one position, before temperature and penalties."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...] = ()


class HiddenRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Final hidden states ``[num, hidden_size]`` of a prompt's tokens from number ``start`` on: their bytes, of torch's
    ``dtype`` of that name."""

    start: int
    num: int
    dtype: str
    data: bytes

    def after(self, count: int) -> HiddenRows:
        """The same without the first ``count``."""
        skipped = len(self.data) // self.num * count
        return HiddenRows(self.start + count, self.num - count, self.dtype, self.data[skipped:]) if count else self


class TokenOutput(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What one step added to one sequence."""

    id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    """Those of the prompt's second token and on, with the first output of a sequence that wants them."""
    hidden: HiddenRows | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    num_pinned_tokens: int = 0
    arrived: float | None = None
    admitted: float | None = None
    """When the sequence came and when it was first scheduled, in the engine's seconds, with its first token."""
    error: str = ""
    error_code: str = ""
    """:attr:`llmk.api.LlmkError.code` of the error."""
    error_param: str = ""
    """:attr:`llmk.api.RequestError.param` of the error."""


class ShadowCount(msgspec.Struct, array_like=True, gc=False):
    """What came of running ``shadow`` beside ``kernel`` at a site: calls that were compared, those in which they differ
    by more than rounding, the largest relative error, and failures, after each of which it is run no more."""

    kind: str
    site: str
    kernel: str
    shadow: str
    compared: int = 0
    diverged: int = 0
    failures: int = 0
    largest: float = 0.0

    def is_of(self, other: ShadowCount) -> bool:
        """Whether ``other`` is about the same."""
        mine, its = ((one.kind, one.site, one.kernel, one.shadow) for one in (self, other))
        return mine == its

    def add(self, other: ShadowCount) -> None:
        """Adds what ``other`` counted. A NaN stays the largest error."""
        self.compared += other.compared
        self.diverged += other.diverged
        self.failures += other.failures
        self.largest = other.largest if math.isnan(other.largest) else max(self.largest, other.largest)


def add_counts(counts: list[ShadowCount], more: list[ShadowCount]) -> None:
    """Adds ``more`` to ``counts``, each to that of its site and pair."""
    for one in more:
        found = next((count for count in counts if count.is_of(one)), None)
        if found is None:
            counts.append(one)
        else:
            found.add(one)


class EngineStats(msgspec.Struct, kw_only=True):
    """Gauges and counters of the engine, sent along with outputs. The last three are its supervisor's to say."""

    running: int = 0
    waiting: int = 0
    total_blocks: int = 0
    used_blocks: int = 0
    pinned_blocks: int = 0
    pins: list[str] = []
    """Ids of the prefixes that are pinned."""
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    timeouts: int = 0
    policy_failures: int = 0
    broken_logits: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    """Estimated work of one device (:mod:`llmk.engine.wire.cost`)."""
    shadows: list[ShadowCount] = []
    up: int = 1
    restarts: int = 0
    retried: int = 0

    def count(self, cost: Cost) -> None:
        """Adds the cost of a step."""
        self.flops += cost.flops
        self.read_bytes += cost.read_bytes
        self.written_bytes += cost.written_bytes


class StepTimes(msgspec.Struct, array_like=True, gc=False):
    """A step that ended: how many tokens it computed, the ``seconds`` until it gave way to the next, and those of them
    in which the host neither ran it nor waited for it."""

    num_tokens: int
    seconds: float
    host_seconds: float


class EngineOutputs(msgspec.Struct, kw_only=True):
    """What one step brought, for all sequences, at ``time`` (the engine's seconds)."""

    outputs: list[TokenOutput] = []
    begun: list[str] = []
    """Sequences that enter the batch with the next step, which is told before that step is run."""
    stats: EngineStats = msgspec.field(default_factory=EngineStats)
    time: float = 0.0
    step: StepTimes | None = None
