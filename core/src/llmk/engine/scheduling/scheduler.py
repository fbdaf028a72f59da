"""Decides what each step computes: continuous batching, chunked prefill, preemption by recomputation.

Nothing here waits for the device. :meth:`Scheduler.schedule` counts what it issues as computed, so that the next step
can be planned while this one runs; :meth:`Scheduler.update` takes the sampled tokens afterwards.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from llmk.api import LlmkError, RequestError
from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.cache.pinned_blocks import PinnedBlocks
from llmk.engine.scheduling.admission import Admission
from llmk.engine.scheduling.deadlines import Deadlines
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.scheduling.issued_step import IssuedStep
from llmk.engine.scheduling.live_sequences import LiveSequences, failed, failed_by
from llmk.engine.scheduling.masks import fill_masks
from llmk.engine.scheduling.preemption import Preemption
from llmk.engine.scheduling.prompt_limit import PromptLimit
from llmk.engine.scheduling.prompt_scheduler import PromptScheduler
from llmk.engine.scheduling.sequence import NO_SLOT, Sequence
from llmk.engine.scheduling.step_limit import NO_LIMIT, StepLimit, in_turns
from llmk.engine.text.guarded_grammar import GuardedGrammar
from llmk.engine.wire.cost import CostModel
from llmk.engine.wire.failure import BROKEN_MODEL
from llmk.engine.wire.request import EngineRequest, EngineStats, HiddenRows, TokenLogprobs, TokenOutput
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.cache_groups import CacheGroup


class Scheduler:
    """Plans steps for the sequences that wait and run (:class:`~llmk.engine.scheduling.live_sequences.LiveSequences`).

    Every running sequence that needs just one more token gets it in each step; the rest of the step's tokens goes to
    prompts, in the order that ``policy`` (:class:`~llmk.api.SchedulingPolicy`) gives them. Where no blocks are free,
    the sequence that the policy names is preempted, and computed again later.

    Where requests decode, ``prompt_limit`` bounds what a step computes of prompts, so that they get their tokens in
    time. While several tenants are served, ``step_limit`` keeps steps short, so that no tenant's tokens become much
    slower because of another's requests. Where not every sequence gets its token in each step, sequences and tenants
    take turns.

    Sequences that miss their ``deadlines`` fail; ``clock`` returns seconds. ``cost`` estimates what steps cost, for the
    statistics.

    With ``drafting``, sequences that decode may compute drafted tokens as well, as far as budget and free blocks go.
    While drafts are in flight, lengths are upper bounds, which results correct; blocks are made hits and given back by
    what is known to be computed.

    The outputs of sequences with a grammar are constrained by masks of ``vocab_size`` tokens (:meth:`masks`).

    With several pipeline ``stages``, sequences that decode are spread over as many steps, of which each stage can
    compute one while the next stage computes the one before.

    ``max_num_batched_tokens`` limits how many tokens a step is given, ``max_run_tokens`` how many the runner can run at
    once. Both are the same unless prompts must stay whole: then a step may be given a prompt longer than the first
    limit, up to the second.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        num_blocks: int,
        groups: Iterable[CacheGroup],
        prefix_caching: bool = True,
        pin_share: float = 0.5,
        tenant_pin_share: float = 0.1,
        chunked_prefill: bool = True,
        max_run_tokens: int = 0,
        policy: GuardedPolicy | None = None,
        deadlines: Deadlines | None = None,
        step_limit: StepLimit | None = None,
        prompt_limit: PromptLimit | None = None,
        cost: CostModel | None = None,
        drafting: Drafting | None = None,
        vocab_size: int = 0,
        stages: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_issued_tokens = max_num_batched_tokens
        longest = max_num_batched_tokens if chunked_prefill else max(max_num_batched_tokens, max_model_len)
        self.max_run_tokens = max_run_tokens or longest
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.cache = BlockCache(num_blocks=num_blocks, groups=tuple(groups), prefix_caching=prefix_caching)
        self.pins = PinnedBlocks(self.cache, pin_share, tenant_pin_share)
        most = self.max_run_tokens
        self.admission = Admission(
            self.cache, self.pins, max_model_len=max_model_len, chunk=most, chunked_prefill=chunked_prefill
        )
        self.deadlines = deadlines or Deadlines()
        self.step_limit = step_limit or NO_LIMIT
        self.stats = EngineStats(total_blocks=num_blocks)
        self.live = LiveSequences(
            max_num_seqs, self.admission, self.cache, policy or GuardedPolicy(), self.stats, clock
        )
        self._preemption = Preemption(self.live, self.admission, self.cache, self.pins)
        self.prompts = PromptScheduler(
            self.live,
            self.cache,
            self.admission,
            prompt_limit or PromptLimit(),
            chunk=most,
            chunked_prefill=chunked_prefill,
        )
        self.running = self.live.running
        self.waiting = self.live.waiting
        self._cost = cost
        self._drafting = self.live.drafting = drafting
        self._vocab_size, self._stages = vocab_size, stages
        self._decoded = False
        """Whether the step whose result came last only decoded."""
        self._prompts_taken = 0, 0.0
        """Tokens of prompts in the step whose result came last, and operations for them."""
        self._issued: deque[IssuedStep] = deque()
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs, a result or failure has yet to be reported, or the runner has yet to learn
        of freed slots."""
        live = self.live
        return bool(live or self._issued or live.failures or live.freed_slots)

    def add(self, request: EngineRequest, grammar: GuardedGrammar | None = None) -> None:
        """Queues a sequence, whose output must match ``grammar``, if there is one. One that can never fit fails with
        its first output."""
        tables = self.cache.new_tables(request.context.cache_salt, request.adapter, request.embeddings)
        sequence = Sequence(request, self._arrivals, self.max_model_len, tables, self.live.clock() - request.age)
        self._arrivals += 1
        sequence.grammar = grammar
        self.live.add(sequence)

    def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences without further output; ids that are unknown or have ended are ignored."""
        for id_ in ids:
            sequence = self.live.get(id_)
            if sequence is not None:
                self.live.finish(sequence)

    def schedule(self) -> StepPlan | None:
        """Plans the next step, or returns ``None`` where nothing can be computed before a step in flight has ended.

        A plan without work only frees slots, so that the runner keeps nothing of requests that have ended.
        """
        live = self.live
        self.pins.expire(live.clock())
        if self.deadlines:
            live.fail_overdue(self.deadlines)
        live.protect()
        first = self._preemption.displace()
        plan = StepPlan(step=self.stats.steps, freed=[], new=[], work=[])
        step = IssuedStep(plan, live.policy, self.max_issued_tokens)
        prefills = self._schedule_decodes(step)
        self.prompts.schedule(step, prefills, first)
        if not plan.work and (self._issued or not live.freed_slots):
            return None
        plan.freed, live.freed_slots = live.freed_slots, []
        self._issued.append(step)
        self.stats.steps += 1
        if self._cost is not None and plan.work:
            self.stats.count(self._cost.step(plan, [entry[2] for entry in step.entries]))
        return plan

    def update(self, result: StepResult) -> list[TokenOutput]:
        """Applies the result of the oldest issued step: appends tokens, ends sequences, and makes full blocks hits."""
        step = self._take(result.step)
        outputs: list[TokenOutput] = []
        sampled = iter(result.tokens)
        scored, logprobs, drafting = result.scored, result.logprobs, self._drafting
        failures = result.errors | dict.fromkeys(result.broken, BROKEN_MODEL)
        self._decoded = drafting is not None and all(sample for *_, sample in step.entries)
        self.stats.broken_logits += result.num_broken + len(result.broken)
        for work, (sequence, admission, num_computed, sample) in enumerate(step.entries):
            tokens = next(sampled) if sample else []
            if sequence.finished:
                continue
            if scored and work in scored:
                sequence.take_scores(scored[work])
            is_running = sequence.admissions == admission and sequence.slot != NO_SLOT
            if drafting is not None and sample:
                num_computed = len(sequence.tokens)  # without drafts: recurrent state takes them in with the next step
                if num_drafts := step.plan.work[work].num_drafts:
                    drafting.settle(sequence, num_drafts, len(tokens) - 1, is_running)
                    self.stats.count_drafts(num_drafts, len(tokens) - 1)
            if is_running:
                self.cache.commit(sequence.tables, sequence.tokens, num_computed)
            if failures and work in failures:
                outputs.append(failed(sequence, *failures[work]))
                self.live.finish(sequence)
            elif sample:
                outputs.append(self._append(sequence, tokens, logprobs.get(work) if logprobs else None))
            elif sequence.request.returns != "tokens":
                ended = num_computed == sequence.num_prompt
                outputs += self._prompt_outputs(sequence, result.hidden.get(work), ended=ended)
        return outputs

    def masks(self, step: int) -> Masks:
        """The masks of an issued step, once the results of all before it were applied."""
        issued = next(issued for issued in self._issued if issued.plan.step == step)
        return fill_masks(issued, self._vocab_size, self.live.fail)

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Takes note of what the step took whose result came last."""
        prompt_tokens, operations = self._prompts_taken
        self.step_limit.take(num_tokens - prompt_tokens, prompt_tokens, seconds)
        self.prompts.limit.take(operations, seconds)
        if self._drafting is not None and self._decoded:
            self._drafting.length.measure(num_tokens, seconds)

    def expected_seconds(self) -> float:
        """What the step with prompts that was planned last is expected to take; 0: not known yet."""
        return self.prompts.limit.expected(self._issued[-1].operations)

    def requests_in(self, step: int) -> list[str]:
        """The ids, as the log has them, of the requests that an issued step computes."""
        issued = next(issued for issued in self._issued if issued.plan.step == step)
        return list(dict.fromkeys(sequence.request.context.log_id for sequence, *_ in issued.entries))

    def fail(self, step: int, error: str) -> list[TokenOutput]:
        """Ends every sequence of an issued step that could not be run."""
        issued = next(issued for issued in self._issued if issued.plan.step == step)
        self._issued.remove(issued)
        outputs: list[TokenOutput] = []
        for sequence, *_ in issued.entries:
            if not sequence.finished:
                outputs.append(failed(sequence, error, "internal_error"))
                self.live.finish(sequence)
        return outputs

    def take_failures(self) -> list[TokenOutput]:
        """Outputs of sequences that failed outside of a step."""
        failures, self.live.failures = self.live.failures, []
        return failures

    def snapshot(self) -> EngineStats:
        """Gauges and counters as they are now."""
        return replace(
            self.stats,
            running=len(self.running),
            waiting=len(self.waiting),
            used_blocks=self.cache.num_blocks - self.cache.num_free,
            pinned_blocks=self.pins.num_blocks,
            pins=self.pins.ids,
            policy_failures=self.live.policy.failures,
            speculator_failures=0 if self._drafting is None else self._drafting.failures,
        )

    def _schedule_decodes(self, step: IssuedStep) -> list[Sequence]:
        """Issues one token for each running sequence that needs just that; returns those that still have a prompt to
        compute.

        Gets blocks for all of them before anything is issued, so that a preempted sequence has no part in the step.
        Where the step's time is limited for the sake of other tenants, half of it is left to prompts. The limit holds
        only where prompts may be cut to fit it.
        """
        live, drafting = self.live, self._drafting
        limit = self.step_limit if self.chunked_prefill and live.tenants.several(live.clock()) else NO_LIMIT
        protected, running = live.protected, list(self.running)
        if protected is not None:
            running = [protected, *(other for other in running if other is not protected)]
        prefills: list[Sequence] = []
        ready: list[Sequence] = []
        for sequence in running:
            known = len(sequence.tokens) + sequence.num_pending
            rest = known - sequence.num_computed
            if sequence.slot == NO_SLOT or rest < 1:
                continue
            if rest == 1 and known >= sequence.limit:
                continue
            if drafting is not None and sequence.num_pending and drafting.waits(sequence):
                continue
            if sequence.num_computed >= sequence.tables.capacity and not self._preemption.make_room(
                sequence, in_flight=bool(self._issued)
            ):
                continue
            if rest == 1:
                ready.append(sequence)
            elif sequence is protected:
                self.prompts.compute(step, sequence, limit.prompt_tokens(0, step.budget))
            else:
                prefills.append(sequence)
        ready = [sequence for sequence in ready if sequence.slot != NO_SLOT]
        prompts = prefills or (self.waiting and live.free_slots and not self.admission.refused)
        rows = limit.rows(step.budget, 0.5 if prompts else 1.0)
        ready = self._turn(ready, rows)
        if drafting is None:
            for sequence in ready:
                step.issue(sequence, 1)
        else:
            room = max(0, rows - len(ready))
            drafting.issue(step, ready, room // 2 if prompts else room, self.cache, len(self.running))
        step.budget = min(step.budget, limit.prompt_tokens(len(ready), step.budget) - step.prompt_tokens)
        return [sequence for sequence in prefills if sequence.slot != NO_SLOT]

    def _turn(self, ready: list[Sequence], rows: int) -> list[Sequence]:
        """Those whose turn it is, at most so many. With several stages, none that is in the steps that other stages
        compute meanwhile, unless there is no other."""
        if self._stages > 1:
            rows = min(rows, -(-len(ready) // self._stages))
            busy = {id(entry[0]) for step in list(self._issued)[1 - self._stages :] for entry in step.entries}
            ready = [sequence for sequence in ready if id(sequence) not in busy] or ready
        return ready if len(ready) <= rows else in_turns(ready)[:rows]

    def _append(self, sequence: Sequence, tokens: list[int], logprobs: list[TokenLogprobs] | None) -> TokenOutput:
        sequence.num_pending -= 1
        reason, stop_token = sequence.append(tokens)
        self.stats.generated_tokens += len(tokens)
        if reason is None and (self._drafting is not None or sequence.grammar is not None):
            try:
                self._follow(sequence, tokens)
            except LlmkError as error:
                self.live.finish(sequence)
                return failed_by(sequence.id, error)
        pinned = 0
        if sequence.request.pin and not (pinned := self._pin(sequence)):
            self.live.finish(sequence)
            why = self.pins.why_not(sequence.num_prompt, self.cache.prefix_caching)
            return failed(sequence, why, RequestError.code)
        prefixes = self._pin_prefixes(sequence) if sequence.no_output and sequence.request.context.prefixes else ()
        if reason is not None:
            self.live.finish(sequence, completed=True)
        output = TokenOutput(
            id=sequence.request.id,
            token_ids=tokens,
            logprobs=tuple(logprobs[: len(tokens)]) if logprobs else (),
            finish_reason=reason,
            stop_token_id=stop_token,
            num_cached_tokens=sequence.num_cached,
            num_pinned_tokens=pinned,
            pinned_prefixes=prefixes,
        )
        return sequence.complete_first(output)

    def _follow(self, sequence: Sequence, tokens: list[int]) -> None:
        """Takes new tokens to the sequence's grammar and drafts. Raises what the grammar raises."""
        if sequence.grammar is not None:
            sequence.grammar.accept(tokens)
        if self._drafting is not None:
            self._drafting.follow(sequence)

    def _prompt_outputs(self, sequence: Sequence, hidden: HiddenRows | None, *, ended: bool) -> Iterator[TokenOutput]:
        """The output of a step for a sequence that ends with its prompt, if there is one."""
        hidden = hidden and sequence.take_hidden(hidden)
        if ended:
            self.live.finish(sequence, completed=True)
        if ended or hidden is not None:
            cached = sequence.num_cached
            output = TokenOutput(id=sequence.id, hidden=hidden, num_cached_tokens=cached)
            output.finish_reason = "stop" if ended else None
            yield sequence.complete_first(output)

    def _pin(self, sequence: Sequence) -> int:
        request = sequence.request
        until = self.live.clock() + request.pin_seconds if request.pin_seconds else math.inf
        return self.pins.hold(request.pin, sequence.tables, sequence.tokens[: sequence.num_prompt], until)

    def _pin_prefixes(self, sequence: Sequence) -> tuple[int, ...]:
        now, context, prompt = self.live.clock(), sequence.request.context, sequence.tokens[: sequence.num_prompt]
        return tuple(
            self.pins.hold_prefix(context.tenant, sequence.tables, prompt[:length], now + seconds)
            for length, seconds in context.prefixes
        )

    def _take(self, step: int) -> IssuedStep:
        issued = self._issued.popleft()
        if issued.plan.step != step:
            raise RuntimeError(f"the result of step {step} arrived, that of step {issued.plan.step} was expected")
        self._prompts_taken = issued.prompt_tokens, issued.operations
        return issued
