"""Requests and their outputs, in the form that crosses the process boundary."""

from __future__ import annotations

import math
import struct
from array import array
from typing import TYPE_CHECKING, Literal

import msgspec

from llmk.engine.wire.block_events import BlockEvent
from llmk.engine.wire.prompt import EmbeddingRun
from llmk.engine.wire.rank_stats import RankStats
from llmk.engine.wire.sampling_params import SamplingParams

if TYPE_CHECKING:
    from llmk.engine.wire.cost import Cost

FinishReason = Literal["stop", "length", "abort", "error"]
Returns = Literal["tokens", "prompt_logprobs", "hidden", "last_hidden", "mean_hidden", "labels"]
"""What a sequence returns: generated tokens; or, without sampling, the log-probabilities of its prompt's tokens, the
hidden states of all of them, of the last, or their mean, or the logits of a classifier's labels at the last."""


class RequestContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Whose request it is, and how it is scheduled and cached."""

    id: str = ""
    """Unique among the requests that run."""
    log_id: str = ""
    """The request id in the log."""
    tenant: str = ""
    """For shares of the engine and limits; ``""`` where the server requires no key."""
    priority: int = 0
    """Of a tenant's requests, those with lower numbers are scheduled first."""
    cache_salt: str = ""
    """Requests with different salts share no cached prefix."""
    adapter: str = ""
    """The name of its adapter; empty: none."""
    session: str = ""
    """What it belongs to, by the client's word; replicas keep sessions together."""
    prefixes: tuple[tuple[int, float], ...] = ()
    """Parts of its prompt that stay in the cache as long as there is room for them: the first so many tokens, for so
    many seconds, shorter ones first."""


class EngineRequest(msgspec.Struct, kw_only=True):
    """One sequence to be generated (a request with ``n`` > 1 becomes ``n`` of these)."""

    id: str
    """The sequence's own id."""
    context: RequestContext = RequestContext()
    prompt_token_ids: list[int]
    """With the vocabulary's size at positions of ``embeddings``."""
    embeddings: list[EmbeddingRun] = []
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    seed: int = 0
    """Always set by the front end, so that sampling does not depend on the batch."""
    adapter: int = 0
    """The number of its adapter among the configured ones, from 1; 0: none. It starts the keys of cached prefixes."""
    pin: str = ""
    """Id under which its prompt is to stay in the cache once it is computed, in place of what that id pinned before."""
    pin_seconds: float = 0.0
    """How long; 0: without end."""
    returns: Returns = "tokens"
    num_delivered: int = 0
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
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...] = ()


class HiddenRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Final hidden states ``[num, hidden_size]`` of a prompt's tokens from number ``start`` on: their bytes, of torch's
    ``dtype`` of that name. What was made of them (their mean, logits) is one row, that of the last token."""

    start: int
    num: int
    dtype: str
    data: bytes

    def after(self, count: int) -> HiddenRows:
        """The same without the first ``count``."""
        skipped = len(self.data) // self.num * count
        return HiddenRows(self.start + count, self.num - count, self.dtype, self.data[skipped:]) if count else self

    def floats(self) -> array[float]:
        """All numbers, row by row, in single precision."""
        if self.dtype == "float16":
            return array("f", struct.unpack(f"<{len(self.data) // 2}e", self.data))
        data: bytes | bytearray = self.data
        if self.dtype == "bfloat16":  # the upper half of a float32
            data = bytearray(2 * len(self.data))
            data[2::4], data[3::4] = self.data[::2], self.data[1::2]
        return array("f", data)


class TokenOutput(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What one step added to one sequence."""

    id: str
    token_ids: list[int] = []
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Those of the prompt's second token and on, with the first output of a sequence that wants them."""
    hidden: HiddenRows | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    num_pinned_tokens: int = 0
    pinned_prefixes: tuple[int, ...] = ()
    """How much of each of :attr:`RequestContext.prefixes` is pinned, with a sequence's first output."""
    arrived: float | None = None
    admitted: float | None = None
    """When the sequence came and when it was first scheduled, in the engine's seconds, with its first token."""
    error: str = ""
    error_code: str = ""
    """:attr:`llmk.api.LlmkError.code` of the error."""
    error_param: str = ""
    """:attr:`llmk.api.RequestError.param` of the error."""


class ShadowCount(msgspec.Struct, array_like=True, gc=False):
    """The comparisons of ``kernel`` with ``shadow`` at a site: calls that were compared, those in which they differ
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
    speculator_failures: int = 0
    broken_logits: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    """Estimated work of one device (:mod:`llmk.engine.wire.cost`)."""
    drafted: list[int] = []
    accepted: list[int] = []
    """Drafts that were verified, and accepted, by position."""
    shadows: list[ShadowCount] = []
    up: int = 1
    restarts: int = 0
    retried: int = 0

    def count(self, cost: Cost) -> None:
        """Adds the cost of a step."""
        self.flops += cost.flops
        self.read_bytes += cost.read_bytes
        self.written_bytes += cost.written_bytes

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Adds a request's drafts in a step, of which the first ``accepted`` were."""
        if missing := max(0, drafted - len(self.drafted)):
            self.drafted = [*self.drafted, *[0] * missing]
            self.accepted = [*self.accepted, *[0] * missing]
        for at in range(drafted):
            self.drafted[at] += 1
        for at in range(accepted):
            self.accepted[at] += 1


class StepTimes(msgspec.Struct, array_like=True, gc=False):
    """A step that ended: how many tokens it computed, the ``seconds`` until the next one started, and those of them
    in which the host neither ran it nor waited for it."""

    num_tokens: int
    seconds: float
    host_seconds: float


class EngineOutputs(msgspec.Struct, kw_only=True):
    """The outputs of one step for all sequences, at ``time`` (the engine's seconds)."""

    outputs: list[TokenOutput] = []
    admitted: list[str] = []
    """Sequences that enter the batch with the next step, sent before that step runs."""
    stats: EngineStats = msgspec.field(default_factory=EngineStats)
    time: float = 0.0
    step: StepTimes | None = None
    blocks: list[BlockEvent] = []
    """What happened to cached blocks, where someone wants to know."""
    ranks: list[RankStats] = []
    """What ranks have measured of themselves, of those that said so of late."""
    replica: int = 0
    """The number of the replica that they are from, where there are several."""
