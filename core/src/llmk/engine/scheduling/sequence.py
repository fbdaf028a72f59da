"""What the scheduler knows of one sequence from its arrival to its end."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from llmk.api import Ticket
from llmk.engine.wire.prompt import left_of
from llmk.engine.wire.step import NewRequest

if TYPE_CHECKING:
    from llmk.engine.cache.block_tables import BlockTables
    from llmk.engine.scheduling.drafting import SequenceDrafts
    from llmk.engine.text.guarded_grammar import GuardedGrammar
    from llmk.engine.wire.request import EngineRequest, FinishReason, HiddenRows, TokenLogprobs, TokenOutput
    from llmk.engine.wire.step import ScoredTokens

NO_SLOT = -1


class Sequence:
    """A sequence: its tokens, how far they are computed, and what it holds.

    Attributes:
        ticket: what the scheduling policy knows it by, its number in order of arrival included.
        arrived: when it came, in the scheduler's seconds.
        admitted: when it first entered the batch.
        tokens: prompt and output as far as the host knows them.
        limit: length at which it ends, in tokens.
        num_computed: tokens in the cache once all issued steps have run, if all drafts are accepted.
        num_pending: tokens that issued steps will sample then, not yet known to the host.
        num_uncertain: drafts among these tokens.
        num_late: accepted drafts that recurrent states lack until its next step.
        drafts: what is known of drafts for it, if any were tried.
        grammar: what its output must match, if anything.
        scored: log-probabilities of the prompt's second token and on, until they are reported.
        num_wanted: how many of the prompt's last tokens have log-probabilities or hidden states that are wanted and
            were not computed yet, or delivered. Until there are none, it reads no cached prefix.
        issued: the last step that computed something of it.
        no_output: whether it has had no output yet.
        admissions: how often it entered the batch, which distinguishes the steps of one stay from those of another.
    """

    __slots__ = (
        "admissions",
        "admitted",
        "arrived",
        "drafts",
        "finished",
        "grammar",
        "issued",
        "limit",
        "no_output",
        "num_cached",
        "num_computed",
        "num_late",
        "num_pending",
        "num_prompt",
        "num_uncertain",
        "num_wanted",
        "request",
        "scored",
        "slot",
        "stops",
        "tables",
        "ticket",
        "tokens",
    )

    def __init__(self, request: EngineRequest, arrival: int, limit: int, tables: BlockTables, arrived: float) -> None:
        params = request.params
        self.request = request
        self.arrived = self.admitted = arrived
        self.tokens = [*request.prompt_token_ids, *request.generated_token_ids]
        self.num_prompt = len(request.prompt_token_ids)
        self.limit = limit if params.max_tokens is None else min(limit, self.num_prompt + params.max_tokens)
        context = request.context
        self.ticket = Ticket(request.id, arrival, context.tenant, context.priority, self.num_prompt, self.limit)
        self.stops = frozenset(
            params.stop_token_ids if params.ignore_eos else params.stop_token_ids + request.eos_token_ids
        )
        self.tables = tables
        self.slot = NO_SLOT
        self.num_computed = 0
        self.num_pending = 0
        self.num_uncertain = 0
        self.num_late = 0
        self.drafts: SequenceDrafts | None = None
        self.grammar: GuardedGrammar | None = None
        self.num_cached = 0
        self.scored: list[TokenLogprobs] = []
        scored = params.prompt_logprobs is not None and not request.generated_token_ids
        self.num_wanted = self.num_prompt - 1 if scored else 0
        if request.returns == "hidden":
            self.num_wanted = self.num_prompt - request.num_delivered
        elif request.returns == "mean_hidden":
            self.num_wanted = self.num_prompt
        self.admissions = 0
        self.issued = -1
        self.no_output = not (request.generated_token_ids or request.num_delivered)
        self.finished = False

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    def entering(self) -> NewRequest:
        """What the runner must know of it as it enters the batch, with nothing computed but what is cached."""
        request = self.request
        return NewRequest(
            id=request.id,
            slot=self.slot,
            token_ids=self.tokens,
            num_prompt_tokens=self.num_prompt,
            num_computed=self.num_computed,
            block_ids=self.tables.all_blocks(),
            params=request.params,
            eos_token_ids=request.eos_token_ids,
            seed=request.seed,
            returns=request.returns,
            num_delivered=self.num_prompt - self.num_wanted,
            request_id=request.context.log_id,
            embeddings=left_of(request.embeddings, self.num_computed),
            adapter=request.adapter,
        )

    def take_scores(self, part: ScoredTokens) -> None:
        """Adds log-probabilities of the prompt, but those that are there already because it was computed again."""
        new = part.tokens[self.num_prompt - self.num_wanted - part.start :]
        self.scored += new
        self.num_wanted -= len(new)

    def take_hidden(self, part: HiddenRows) -> HiddenRows | None:
        """What is new of hidden states of the prompt; ``None`` where all of it was delivered before."""
        if self.request.returns != "hidden":
            return part
        new = part.after(min(part.num, self.num_prompt - self.num_wanted - part.start))
        self.num_wanted -= new.num
        return new if new.num else None

    def complete_first(self, output: TokenOutput) -> TokenOutput:
        """``output``, with the fields that only a sequence's first output has."""
        if self.no_output:
            self.no_output = False
            output.arrived, output.admitted = self.arrived, self.admitted
            output.prompt_logprobs, self.scored = tuple(self.scored), []
        return output

    def append(self, tokens: list[int]) -> tuple[FinishReason | None, int | None]:
        """Adds tokens until one ends the sequence, and removes from ``tokens`` those behind it. Returns the reason for
        the end, if it has come, and the stop token that the request named."""
        self.tokens += tokens
        if len(self.tokens) < self.limit and self.stops.isdisjoint(tokens):
            return None, None
        return self._end(tokens)

    def _end(self, tokens: list[int]) -> tuple[FinishReason | None, int | None]:
        params, before = self.request.params, len(self.tokens) - len(tokens)
        for count, token in enumerate(tokens, 1):
            length = before + count
            # A grammar that allows nothing else ends the output before min_tokens.
            may_stop = length >= self.num_prompt + params.min_tokens or self.grammar is not None
            stops = may_stop and token in self.stops
            if stops or length >= self.limit:
                del tokens[count:], self.tokens[length:]
                return "stop" if stops else "length", token if stops and token in params.stop_token_ids else None
        return None, None


arrival_of = attrgetter("ticket.arrival")
"""Sort key of queues."""
