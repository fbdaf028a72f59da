"""What passes between scheduler and runner: a plan of what to compute, and the sampled tokens. Only changes are
sent."""

from __future__ import annotations

import math

import msgspec

from llmk.engine.wire.prompt import EmbeddingRun
from llmk.engine.wire.request import HiddenRows, Returns, ShadowCount, TokenLogprobs
from llmk.engine.wire.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, kw_only=True):
    """A request that enters the batch at ``slot``.

    ``token_ids`` are all tokens known so far (prompt, and output where the request was preempted before). The first
    ``num_computed`` of them are in the cache already. ``block_ids`` has one list per cache group. What
    ``returns`` and ``params`` want of each of the prompt's tokens is not wanted (again) of the first ``num_delivered``.
    The log calls it by ``request_id``. ``adapter`` is :attr:`llmk.engine.wire.request.EngineRequest.adapter`.

    ``embeddings`` are those given in place of tokens, as far as they are not in the cache already; there, ``token_ids``
    has the vocabulary's size.
    """

    id: str
    slot: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed: int
    block_ids: list[list[int]]
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    seed: int
    returns: Returns = "tokens"
    num_delivered: int = 0
    request_id: str = ""
    adapter: int = 0
    embeddings: list[EmbeddingRun] = []


class Work(msgspec.Struct, kw_only=True, gc=False):
    """Compute the next ``num_tokens`` tokens of ``slot``, after the ``before`` tokens that are in the cache by then.

    ``new_blocks`` (one list per cache group) are appended to its block tables first. ``sample``: the last known token
    is among these tokens, so the next is to be sampled from its logits, if any is wanted. The last ``num_drafts``
    tokens are drafts, behind the last known one; a token is sampled at each of them too, and drafts are accepted while
    they equal what was sampled before them. ``drafts`` are their ids; empty: the device drafts them itself.

    ``masked``: the row may take only tokens that a mask allows, which follows (:class:`Masks`).

    While a step in flight may reject drafts, ``before`` is an upper bound, and at most ``num_uncertain`` too large.
    """

    slot: int
    before: int
    num_tokens: int
    new_blocks: list[list[int]] = []
    sample: bool = False
    num_drafts: int = 0
    drafts: tuple[int, ...] = ()
    num_uncertain: int = 0
    masked: bool = False


class StepPlan(msgspec.Struct, kw_only=True):
    """One step. ``freed`` slots are vacant from this step on, before ``new`` ones are filled. ``speculative``: it
    verifies drafts, or continues requests whose drafts a step in flight verifies, or whose recurrent states lack
    accepted ones. ``deferred``: it samples only once its :class:`Masks` have come. ``record``: it has no work, and
    records one more kind of step, where any is left."""

    step: int
    freed: list[int] = []
    new: list[NewRequest] = []
    work: list[Work] = []
    speculative: bool = False
    deferred: bool = False
    record: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum([work.num_tokens for work in self.work])

    @property
    def sampled_work(self) -> list[int]:
        """Numbers of the work items that are sampled."""
        return [number for number, work in enumerate(self.work) if work.sample]


class Masks(msgspec.Struct, kw_only=True):
    """The tokens that rows of a step may take: bit ``t % 32`` of word ``t // 32`` of a row is 1 for a token that is
    allowed. ``rows`` are sampled rows by their number in the step, in the plan's order, as slots may have other
    owners by then. ``bits`` are their masks, int32 words, one row after the other."""

    step: int
    rows: list[int]
    bits: bytearray


class ScoredTokens(msgspec.Struct, array_like=True, gc=False):
    """Log-probabilities of the prompt's tokens from number ``start`` on, given those before each."""

    start: int
    tokens: list[TokenLogprobs]

    @property
    def broken(self) -> bool:
        """Whether any of them is NaN."""
        return any(math.isnan(token.logprob) for token in self.tokens)


class StepResult(msgspec.Struct, kw_only=True):
    """Sampled tokens per work item with ``sample``, in the plan's order: one, and one more for each draft that was
    accepted.

    All else is by the number of the work item: ``logprobs`` of items that want them, one per token; ``scored`` and
    ``hidden`` parts of prompts; ``errors`` message and code of requests that the sampler had to fail, whose tokens mean
    nothing, and ``num_broken`` of which have logits that nothing can be drawn from. ``broken`` are items whose parts of
    prompts are not finite. ``shadows`` is what the step compared. ``unrecorded`` is how many kinds of steps are left to
    record (:attr:`StepPlan.record`).
    """

    step: int
    tokens: list[list[int]] = []
    logprobs: dict[int, list[TokenLogprobs]] = {}
    scored: dict[int, ScoredTokens] = {}
    hidden: dict[int, HiddenRows] = {}
    errors: dict[int, tuple[str, ...]] = {}
    num_broken: int = 0
    broken: list[int] = []
    shadows: list[ShadowCount] = []
    unrecorded: int = 0
