"""Decides what each step computes: continuous batching, chunked prefill, preemption by recomputing.

Nothing here waits for the device. :meth:`Scheduler.schedule` counts on what it issues, so that the next step can be
planned while this one runs; :meth:`Scheduler.update` learns afterwards which tokens came of it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from llmk.engine.blocks import BlockCache
from llmk.engine.request import EngineRequest, EngineStats, TokenLogprobs, TokenOutput
from llmk.engine.sequence import NO_SLOT, Sequence, order_of
from llmk.engine.step import NewRequest, StepPlan, StepResult, Work


@dataclass(slots=True, eq=False)
class _Issued:
    """A step whose result is still to come. An entry is a sequence, the admission it was issued under, its length in
    the cache after the step, and whether a token is sampled for it."""

    step: int
    entries: list[tuple[Sequence, int, int, bool]]


class Scheduler:
    """Queues sequences, gives them slots and blocks, and plans steps.

    Sequences are served in the order of priority (lower first) and arrival. Every running sequence that needs just one
    more token gets it in each step; what is left of the step's tokens goes to prompts. Where blocks run out, the
    sequence that came last gives up its own and is computed again later, so the one that came first always gets on.

    ``max_num_batched_tokens`` limits what one step may be issued, ``max_run_tokens`` what the runner can run at once.
    Both are the same unless prompts must stay whole: then a prompt longer than the first limit may still be issued up
    to the second.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        chunked_prefill: bool = True,
        max_run_tokens: int = 0,
        num_groups: int = 1,
    ) -> None:
        self.max_issued_tokens = max_num_batched_tokens
        longest = max_num_batched_tokens if chunked_prefill else max(max_num_batched_tokens, max_model_len)
        self.max_run_tokens = max_run_tokens or longest
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.cache = BlockCache(
            num_blocks=num_blocks, block_size=block_size, num_groups=num_groups, prefix_caching=prefix_caching
        )
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.stats = EngineStats(total_blocks=num_blocks)
        self._sequences: dict[str, Sequence] = {}
        self._slots = list(range(max_num_seqs - 1, -1, -1))
        self._freed: list[int] = []
        self._issued: deque[_Issued] = deque()
        self._failures: list[TokenOutput] = []
        self._arrivals = 0
        self._refused: tuple[Sequence | None, int] = (None, 0)
        """The sequence for which there were too few blocks when last asked, and how many there were."""

    @property
    def has_work(self) -> bool:
        """Whether anything is queued, running, or waiting to be told, be it to the runner, which must forget."""
        return bool(self._sequences or self._issued or self._failures or self._freed)

    def add(self, request: EngineRequest) -> None:
        """Queues a sequence. One that can never fit fails with its first output."""
        sequence = Sequence(request, self._arrivals, self.max_model_len, self.cache.new_tables(request.cache_salt))
        self._arrivals += 1
        problem = self._why_never(sequence)
        if problem:
            self._failures.append(_failure(sequence, problem, "invalid_request_error"))
            return
        self._sequences[request.id] = sequence
        insort(self.waiting, sequence, key=order_of)

    def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences without further output; ids that are unknown or have ended are ignored."""
        for id_ in ids:
            sequence = self._sequences.get(id_)
            if sequence is not None:
                self._finish(sequence)

    def schedule(self) -> StepPlan | None:
        """Plans the next step, or returns ``None`` where nothing can be computed before the result of an issued one is
        there. A plan without work only frees slots, so that nothing is kept of requests while there are none.
        """
        plan = StepPlan(step=self.stats.steps, freed=[], new=[], work=[])
        issued = _Issued(plan.step, [])
        prefills = self._schedule_decodes(plan, issued)
        budget = self.max_issued_tokens - len(plan.work)
        for sequence in prefills:
            if budget:
                budget -= self._issue(plan, issued, sequence, min(budget, len(sequence.tokens) - sequence.num_computed))
        self._admit(plan, issued, budget)
        if not plan.work and (self._issued or not self._freed):
            return None
        plan.freed, self._freed = self._freed, []
        self._issued.append(issued)
        self.stats.steps += 1
        return plan

    def update(self, result: StepResult) -> list[TokenOutput]:
        """Applies the result of the oldest issued step: tokens, ends, and blocks that are hits from now on."""
        issued = self._take(result.step)
        outputs: list[TokenOutput] = []
        sampled = iter(zip(result.slots, result.token_ids, strict=True))
        for work, (sequence, admission, num_computed, sample) in enumerate(issued.entries):
            slot, token = next(sampled) if sample else (NO_SLOT, NO_SLOT)
            if sequence.finished:
                continue
            if work in result.scored:
                sequence.take_scores(result.scored[work])
            if sequence.admissions == admission and sequence.slot != NO_SLOT:
                self.cache.commit(sequence.tables, sequence.tokens, num_computed)
            if sample and slot in result.errors:
                outputs.append(_failure(sequence, *result.errors[slot]))
                self._finish(sequence)
            elif sample:
                outputs.append(self._append(sequence, token, result.logprobs.get(slot)))
        return outputs

    def fail(self, step: int, error: str) -> list[TokenOutput]:
        """Ends every sequence of an issued step that could not be run."""
        issued = next(issued for issued in self._issued if issued.step == step)
        self._issued.remove(issued)
        outputs: list[TokenOutput] = []
        for sequence, *_ in issued.entries:
            if not sequence.finished:
                outputs.append(_failure(sequence, error, "internal_error"))
                self._finish(sequence)
        return outputs

    def take_failures(self) -> list[TokenOutput]:
        """Outputs of sequences that ended without being run."""
        failures, self._failures = self._failures, []
        return failures

    def snapshot(self) -> EngineStats:
        """Gauges and counters as they are now."""
        return replace(
            self.stats,
            running=len(self.running),
            waiting=len(self.waiting),
            used_blocks=self.cache.num_blocks - self.cache.num_free,
        )

    def _schedule_decodes(self, plan: StepPlan, issued: _Issued) -> list[Sequence]:
        """Issues one token for each running sequence that needs just that; returns those that still have a prompt to
        compute.
        """
        prefills = []
        index = 0
        while index < len(self.running) and len(plan.work) < self.max_issued_tokens:
            sequence = self.running[index]
            index += 1
            known = len(sequence.tokens) + sequence.num_pending
            if known - sequence.num_computed > 1:
                prefills.append(sequence)
            elif known < sequence.limit and known > sequence.num_computed:
                if known <= sequence.tables.capacity:
                    self._issue(plan, issued, sequence, 1)
                else:
                    self._issue_with_block(plan, issued, sequence)
        return prefills

    def _issue_with_block(self, plan: StepPlan, issued: _Issued, sequence: Sequence) -> None:
        """Issues a decode that needs one more block, which later sequences or this one itself may have to make room
        for.
        """
        while (new := self.cache.extend(sequence.tables)) is None:
            if len(self.running) == 1:
                blocks = self.cache.num_blocks
                self._end_early(sequence, f"its {len(sequence.tokens)} tokens fill the cache of {blocks} blocks")
                return
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return
        self._issue(plan, issued, sequence, 1, new)

    def _issue(
        self,
        plan: StepPlan,
        issued: _Issued,
        sequence: Sequence,
        count: int,
        new_blocks: list[list[int]] | None = None,
    ) -> int:
        sequence.num_computed += count
        sample = sequence.num_computed == len(sequence.tokens) + sequence.num_pending
        if sample:
            sequence.num_pending += 1
        plan.work.append(Work(slot=sequence.slot, num_tokens=count, new_blocks=new_blocks or [], sample=sample))
        issued.entries.append((sequence, sequence.admissions, sequence.num_computed, sample))
        return count

    def _admit(self, plan: StepPlan, issued: _Issued, budget: int) -> None:
        """Lets waiting sequences in, first come first served, as far as tokens, slots and blocks go.

        One whose next prefix block is just being computed by another is passed over until that is a hit.
        """
        index = 0
        while index < len(self.waiting) and self._slots and budget > 0:
            sequence = self.waiting[index]
            if not sequence.unscored and self.cache.awaits_another(sequence.tables, sequence.tokens):
                index += 1
                continue
            length = len(sequence.tokens)
            whole = not self.chunked_prefill and length > max(budget, self.max_run_tokens - plan.num_tokens)
            if sequence.num_pending or whole or (cached := self._take_blocks(sequence)) is None:
                return
            del self.waiting[index]
            self._enter(plan, sequence, cached)
            rest = length - cached
            budget -= self._issue(plan, issued, sequence, min(rest, budget) if self.chunked_prefill else rest)

    def _take_blocks(self, sequence: Sequence) -> int | None:
        """Blocks for all known tokens, with one to spare for each running sequence; returns how many are cached.

        ``None`` where there are too few. The same sequence is not tried again before there are more.
        """
        spare = len(self.running)
        available = self.cache.num_free - spare
        refused, had = self._refused
        if sequence is refused and available <= had:
            return None
        reuse = not sequence.unscored
        cached = self.cache.admit(sequence.tables, sequence.tokens, spare=spare, reuse=reuse)
        self._refused = (sequence, available) if cached is None else (None, 0)
        return cached

    def _enter(self, plan: StepPlan, sequence: Sequence, cached: int) -> None:
        insort(self.running, sequence, key=order_of)
        sequence.slot = self._slots.pop()
        sequence.num_computed = cached
        sequence.admissions += 1
        if sequence.admissions == 1:
            sequence.num_cached = cached
            self.stats.prompt_tokens += sequence.num_prompt
            self.stats.prefix_queried_tokens += sequence.num_prompt
            self.stats.prefix_hit_tokens += cached
        request = sequence.request
        plan.new.append(
            NewRequest(
                id=request.id,
                slot=sequence.slot,
                token_ids=sequence.tokens,
                num_prompt_tokens=sequence.num_prompt,
                num_computed=cached,
                block_ids=[list(table) for table in sequence.tables.tables],
                params=request.params,
                eos_token_ids=request.eos_token_ids,
                seed=request.seed,
                num_scored=sequence.num_prompt - sequence.unscored,
            )
        )

    def _append(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> TokenOutput:
        sequence.tokens.append(token)
        sequence.num_pending -= 1
        self.stats.generated_tokens += 1
        reason, stop_token = sequence.end(token)
        scored, sequence.scored = sequence.scored, []
        if reason is not None:
            self._finish(sequence)
        return TokenOutput(
            id=sequence.request.id,
            token_ids=[token],
            logprobs=[] if logprobs is None else [logprobs],
            prompt_logprobs=scored,
            finish_reason=reason,
            stop_token_id=stop_token,
            num_cached_tokens=sequence.num_cached,
        )

    def _preempt(self, sequence: Sequence) -> None:
        self.stats.preemptions += 1
        self.running.remove(sequence)
        self._vacate(sequence)
        sequence.num_computed = 0
        insort(self.waiting, sequence, key=order_of)

    def _finish(self, sequence: Sequence) -> None:
        sequence.finished = True
        del self._sequences[sequence.id]
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._vacate(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        self.cache.release(sequence.tables)
        self._slots.append(sequence.slot)
        self._freed.append(sequence.slot)
        sequence.slot = NO_SLOT

    def _end_early(self, sequence: Sequence, error: str) -> None:
        self._failures.append(_failure(sequence, error, "not_enough_memory"))
        self._finish(sequence)

    def _why_never(self, sequence: Sequence) -> str:
        """Why a sequence could not run even if it had the engine to itself, or ``""``."""
        length = sequence.num_prompt
        if not length:
            return "the prompt has no tokens"
        if length >= self.max_model_len:
            return f"the prompt has {length} tokens, the model's context is {self.max_model_len}"
        blocks = self.cache.blocks_for(length)
        if blocks > self.cache.num_blocks:
            return (
                f"the prompt's {length} tokens need {blocks} blocks of {self.cache.block_size},"
                f" the cache has {self.cache.num_blocks}; shorten it or raise cache.num_blocks"
            )
        if not self.chunked_prefill and sequence.limit > self.max_run_tokens:
            return (
                f"prompt and output may reach {sequence.limit} tokens, one step runs {self.max_run_tokens};"
                " turn on scheduler.chunked_prefill or raise scheduler.max_num_batched_tokens"
            )
        return ""

    def _take(self, step: int) -> _Issued:
        issued = self._issued.popleft()
        if issued.step != step:
            raise RuntimeError(f"the result of step {step} arrived, that of step {issued.step} was expected")
        return issued


def _failure(sequence: Sequence, error: str, code: str) -> TokenOutput:
    return TokenOutput(id=sequence.id, finish_reason="error", error=error, error_code=code)
