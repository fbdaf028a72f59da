"""Decides what each step computes: continuous batching, chunked prefill, preemption by recomputing.

Nothing here waits for the device. :meth:`Scheduler.schedule` counts on what it issues, so that the next step can be
planned while this one runs; :meth:`Scheduler.update` learns afterwards which tokens came of it.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from llmk.api import NotEnoughMemory, RequestError, Ticket
from llmk.engine.cache.block_tables import BlockCache
from llmk.engine.cache.pins import Pins
from llmk.engine.scheduling.admission import Admission
from llmk.engine.scheduling.deadlines import Deadlines
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.scheduling.sequence import NO_SLOT, Sequence, arrival_of
from llmk.engine.scheduling.step_limit import StepLimit, Tenants, in_turns
from llmk.engine.scheduling.waiting_queue import WaitingQueue
from llmk.engine.wire.cost import CostModel
from llmk.engine.wire.failure import BROKEN_MODEL
from llmk.engine.wire.request import EngineRequest, EngineStats, HiddenRows, TokenLogprobs, TokenOutput
from llmk.engine.wire.step import NewRequest, StepPlan, StepResult, Work
from llmk.planning.cache_groups import CacheGroup


@dataclass(slots=True, eq=False)
class _Issued:
    """A step whose result is still to come. An entry is a sequence, the admission it was issued under, its length in
    the cache after the step, and whether a token is sampled for it."""

    step: int
    entries: list[tuple[Sequence, int, int, bool]]


class Scheduler:
    """Queues sequences, gives them slots and blocks, and plans steps.

    Every running sequence that needs just one more token gets it in each step; what is left of the step's tokens goes
    to prompts, in the order that ``policy`` (:class:`~llmk.api.SchedulingPolicy`) gives them. Where blocks run out, the
    one that it names gives up its own and is computed again later. So that this comes to an end whatever the policy
    names, the eldest sequence is kept once many have given way and none has ended: it is served first, and never gives
    way, until it ends.

    While several tenants are served, ``step_limit`` keeps steps short, so that none's tokens come much slower because
    of what others send. Where not every sequence has its token in each step, they take turns, and so do tenants.

    Sequences that miss their ``deadlines`` fail; ``clock`` tells the seconds. ``cost`` estimates what steps cost, for
    the statistics.

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
        groups: Iterable[CacheGroup],
        prefix_caching: bool = True,
        pin_share: float = 0.5,
        chunked_prefill: bool = True,
        max_run_tokens: int = 0,
        policy: GuardedPolicy | None = None,
        deadlines: Deadlines | None = None,
        step_limit: StepLimit | None = None,
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_issued_tokens = max_num_batched_tokens
        longest = max_num_batched_tokens if chunked_prefill else max(max_num_batched_tokens, max_model_len)
        self.max_run_tokens = max_run_tokens or longest
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.cache = BlockCache(num_blocks=num_blocks, groups=tuple(groups), prefix_caching=prefix_caching)
        self.pins = Pins(self.cache, pin_share)
        self.admission = Admission(
            self.cache,
            self.pins,
            max_model_len=max_model_len,
            chunk=self.max_run_tokens,
            chunked_prefill=chunked_prefill,
        )
        self.policy = policy or GuardedPolicy()
        self.deadlines = deadlines or Deadlines()
        self.step_limit = step_limit or StepLimit(0.0)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.stats = EngineStats(total_blocks=num_blocks)
        self.clock = clock
        self._cost = cost
        self._sequences: dict[str, Sequence] = {}
        self._tenants = Tenants()
        self._slots = list(range(max_num_seqs - 1, -1, -1))
        self._freed: list[int] = []
        self._issued: deque[_Issued] = deque()
        self._failures: list[TokenOutput] = []
        self._arrivals = 0
        self._patience = 2 * max_num_seqs
        self._given_way = 0
        """How often sequences gave way since one ended."""
        self._kept: Sequence | None = None

    @property
    def has_work(self) -> bool:
        """Whether anything is queued, running, or waiting to be told, be it to the runner, which must forget."""
        return bool(self._sequences or self._issued or self._failures or self._freed)

    def add(self, request: EngineRequest) -> None:
        """Queues a sequence. One that can never fit fails with its first output."""
        tables = self.cache.new_tables(request.cache_salt)
        sequence = Sequence(request, self._arrivals, self.max_model_len, tables, self.clock() - request.age)
        self._arrivals += 1
        problem = self.admission.why_never(sequence)
        if problem:
            self._failures.append(_failure(sequence, problem, RequestError.code))
            return
        self._sequences[request.id] = sequence
        self._tenants.enter(request.tenant)
        self.waiting.add(sequence)

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
        self.pins.expire(self.clock())
        if self.deadlines:
            self._end_overdue()
        if self._given_way > self._patience and self._kept is None and self.running:
            self._kept = self.running[0]
        first = self._displace() if self.waiting and self.policy.displaces else None
        plan = StepPlan(step=self.stats.steps, freed=[], new=[], work=[])
        issued = _Issued(plan.step, [])
        budget = self._budget()
        prefills = self._schedule_decodes(plan, issued, budget)
        self._run_prompts(plan, issued, prefills, first, budget - plan.num_tokens)
        if not plan.work and (self._issued or not self._freed):
            return None
        plan.freed, self._freed = self._freed, []
        self._issued.append(issued)
        self.stats.steps += 1
        if self._cost is not None and plan.work:
            self.stats.count(self._cost.step(plan, [entry[2] for entry in issued.entries]))
        return plan

    def update(self, result: StepResult) -> list[TokenOutput]:
        """Applies the result of the oldest issued step: tokens, ends, and blocks that are hits from now on."""
        issued = self._take(result.step)
        outputs: list[TokenOutput] = []
        sampled = iter(zip(result.slots, result.token_ids, strict=True))
        scored, errors, logprobs = result.scored, result.errors, result.logprobs
        self.stats.broken_logits += result.num_broken + len(result.broken)
        for work, (sequence, admission, num_computed, sample) in enumerate(issued.entries):
            slot, token = next(sampled) if sample else (NO_SLOT, NO_SLOT)
            if sequence.finished:
                continue
            if work in scored:
                sequence.take_scores(scored[work])
            if sequence.admissions == admission and sequence.slot != NO_SLOT:
                self.cache.commit(sequence.tables, sequence.tokens, num_computed)
            if work in result.broken:
                outputs.append(_failure(sequence, *BROKEN_MODEL))
                self._finish(sequence)
            elif sample and slot in errors:
                outputs.append(_failure(sequence, *errors[slot]))
                self._finish(sequence)
            elif sample:
                outputs.append(self._append(sequence, token, logprobs.get(slot)))
            elif sequence.request.returns != "tokens":
                outputs += self._tell(sequence, result.hidden.get(work), ended=num_computed == sequence.num_prompt)
        return outputs

    def requests_in(self, step: int) -> list[str]:
        """What the log calls the requests that an issued step works for."""
        issued = next(issued for issued in self._issued if issued.step == step)
        return list(dict.fromkeys(sequence.request.request_id for sequence, *_ in issued.entries))

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
            pinned_blocks=self.pins.num_blocks,
            pins=self.pins.ids,
            policy_failures=self.policy.failures,
        )

    def _end_overdue(self) -> None:
        overdue = list(self.deadlines.overdue(self._sequences.values(), self.waiting, self.clock()))
        self.stats.timeouts += len(overdue)
        for sequence, error, code in overdue:
            self._end_early(sequence, error, code)

    def _displace(self) -> Sequence | None:
        """Makes room for the first of those who wait, where there is none and the policy lets it displace others;
        returns it if it did.
        """
        if self._slots and not self.admission.refused:
            return None
        newcomer = self._of(next(self.policy.order(self.waiting.tickets)))
        if newcomer.num_pending or self.admission.awaits_another(newcomer):
            return None
        first = None
        while not self._slots or self.admission.is_short(newcomer, len(self.running)):
            victim = self.policy.displaced(self._may_give_way(), newcomer.ticket)
            if victim is None:
                break
            self._preempt(self._of(victim))
            first = newcomer
        return first

    def _budget(self) -> int:
        """Tokens that the next step may compute. What a step can't be cut to fit is not limited."""
        several = self.chunked_prefill and self._tenants.several(self.clock())
        return self.step_limit.tokens(self.max_issued_tokens) if several else self.max_issued_tokens

    def _schedule_decodes(self, plan: StepPlan, issued: _Issued, budget: int) -> list[Sequence]:
        """Issues one token for each running sequence that needs just that; returns those that still have a prompt to
        compute.

        Blocks are seen to before anything is issued, so that a sequence that gives way has no part in the step. Of a
        ``budget`` that is limited, half is left to prompts.
        """
        kept = self._kept
        running = self.running if kept is None else [kept, *(other for other in self.running if other is not kept)]
        prefills: list[Sequence] = []
        ready: list[Sequence] = []
        for sequence in list(running):
            known = len(sequence.tokens) + sequence.num_pending
            rest = known - sequence.num_computed
            if sequence.slot == NO_SLOT or rest < 1:
                continue
            if rest == 1 and known >= sequence.limit:
                continue
            if sequence.num_computed >= sequence.tables.capacity and not self._make_room(sequence):
                continue
            if rest == 1:
                ready.append(sequence)
            elif sequence is kept:
                budget -= self._issue(plan, issued, sequence, self._extend(sequence, min(budget, rest)))
            else:
                prefills.append(sequence)
        ready = [sequence for sequence in ready if sequence.slot != NO_SLOT]
        prompts = prefills or (self.waiting and self._slots and not self.admission.refused)
        rows = budget - budget // 2 if prompts and budget < self.max_issued_tokens else budget
        if len(ready) > rows:
            ready = in_turns(ready)[:rows]
        for sequence in ready:
            self._issue(plan, issued, sequence, 1)
        return [sequence for sequence in prefills if sequence.slot != NO_SLOT]

    def _make_room(self, sequence: Sequence) -> bool:
        """Gets blocks for one more token of a sequence, for which others or it itself may have to give way; returns
        whether it can go on.
        """
        while not self.cache.extend(sequence.tables, sequence.num_computed + 1):
            if len(self.running) == 1 and self._issued:
                return False  # what is issued may yet give blocks back
            if len(self.running) == 1 and self.pins.give_way():
                continue
            if len(self.running) == 1:
                blocks = self.cache.num_blocks
                error = f"its {len(sequence.tokens)} tokens fill the cache of {blocks} blocks"
                self._end_early(sequence, error, NotEnoughMemory.code)
                return False
            victim = self._of(self.policy.victim(self._may_give_way()))
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _extend(self, sequence: Sequence, count: int) -> int:
        """Gets blocks for the next ``count`` tokens of a sequence, as far as there are free ones; returns for how many
        tokens it has them.
        """
        self.cache.extend(sequence.tables, sequence.num_computed + count)
        return min(count, sequence.tables.capacity - sequence.num_computed)

    def _may_give_way(self) -> tuple[Ticket, ...]:
        return tuple([sequence.ticket for sequence in self.running if sequence is not self._kept])

    def _of(self, ticket: Ticket) -> Sequence:
        return self._sequences[ticket.id]

    def _issue(self, plan: StepPlan, issued: _Issued, sequence: Sequence, count: int) -> int:
        sequence.num_computed += count
        sequence.issued = plan.step
        known = len(sequence.tokens) + sequence.num_pending
        sample = sequence.num_computed == known and sequence.request.returns == "tokens"
        if sample:
            sequence.num_pending += 1
        news = sequence.tables.take_news()
        plan.work.append(Work(slot=sequence.slot, num_tokens=count, new_blocks=news, sample=sample))
        issued.entries.append((sequence, sequence.admissions, sequence.num_computed, sample))
        self.policy.computed(sequence.ticket, count)
        return count

    def _run_prompts(
        self, plan: StepPlan, issued: _Issued, prefills: list[Sequence], first: Sequence | None, budget: int
    ) -> None:
        """Gives ``budget``, what is left of the step's tokens, to prompts in the policy's order, and so lets waiting
        sequences in, as far as tokens, slots and blocks go. None is let in before one for which there are too few
        blocks.
        """
        prompts = len(prefills)
        waiting = self.waiting.tickets if self._slots else ()
        if not (prompts or waiting) or budget <= 0:
            return
        tickets = (*(sequence.ticket for sequence in prefills), *waiting) if prompts else waiting
        for sequence in self._in_order(tickets, first):
            if sequence.slot != NO_SLOT:
                prompts -= 1
                rest = len(sequence.tokens) - sequence.num_computed
                if room := self._extend(sequence, min(budget, rest)):
                    budget -= self._issue(plan, issued, sequence, room)
            elif waiting:
                count = self._admit(plan, issued, sequence, budget)
                budget -= count or 0
                if count is None or not self._slots:
                    waiting = ()
            if budget <= 0 or not (prompts or waiting):
                return

    def _in_order(self, tickets: tuple[Ticket, ...], first: Sequence | None) -> Iterator[Sequence]:
        """Sequences as the policy orders them, behind the one that was made room for."""
        if first is not None:
            yield first
        for ticket in self.policy.order(tickets):
            sequence = self._of(ticket)
            if sequence is not first:
                yield sequence

    def _admit(self, plan: StepPlan, issued: _Issued, sequence: Sequence, budget: int) -> int | None:
        """Lets a waiting sequence in, and issues what it can of its tokens; returns how many, or ``None`` where it must
        wait for tokens or blocks.

        One whose next prefix block is just being computed by another is passed over (0) until that is a hit.
        """
        if self.admission.awaits_another(sequence):
            return 0
        length = len(sequence.tokens)
        whole = not self.chunked_prefill and length > max(budget, self.max_run_tokens - plan.num_tokens)
        if sequence.num_pending or whole or (cached := self.admission.take(sequence, len(self.running))) is None:
            return None
        self.waiting.remove(sequence)
        sequence.num_computed = cached
        rest = length - cached
        count = self._extend(sequence, min(rest, budget)) if self.chunked_prefill else rest
        self._enter(plan, sequence, cached)
        return self._issue(plan, issued, sequence, count)

    def _enter(self, plan: StepPlan, sequence: Sequence, cached: int) -> None:
        insort(self.running, sequence, key=arrival_of)
        sequence.slot = self._slots.pop()
        sequence.admissions += 1
        if sequence.admissions == 1:
            sequence.began = self.clock()
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
                block_ids=sequence.tables.tell(),
                params=request.params,
                eos_token_ids=request.eos_token_ids,
                seed=request.seed,
                returns=request.returns,
                num_told=sequence.num_prompt - sequence.untold,
                request_id=request.request_id,
            )
        )

    def _append(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> TokenOutput:
        sequence.tokens.append(token)
        sequence.num_pending -= 1
        self.stats.generated_tokens += 1
        reason, stop_token = sequence.end(token)
        pinned = self._pin(sequence) if sequence.request.pin else 0
        if sequence.request.pin and not pinned:
            self._finish(sequence)
            why = self.pins.why_not(sequence.num_prompt, self.cache.prefix_caching)
            return _failure(sequence, why, RequestError.code)
        if reason is not None:
            self._finish(sequence)
            self._given_way = 0
        output = TokenOutput(
            id=sequence.request.id,
            token_ids=[token],
            logprobs=[] if logprobs is None else [logprobs],
            finish_reason=reason,
            stop_token_id=stop_token,
            num_cached_tokens=sequence.num_cached,
            num_pinned_tokens=pinned,
        )
        return sequence.introduce(output)

    def _tell(self, sequence: Sequence, hidden: HiddenRows | None, *, ended: bool) -> Iterator[TokenOutput]:
        """What a step adds to a sequence that ends with its prompt."""
        hidden = hidden and sequence.take_hidden(hidden)
        if ended:
            self._finish(sequence)
            self._given_way = 0
        if ended or hidden is not None:
            cached = sequence.num_cached
            output = TokenOutput(id=sequence.id, hidden=hidden, num_cached_tokens=cached)
            output.finish_reason = "stop" if ended else None
            yield sequence.introduce(output)

    def _pin(self, sequence: Sequence) -> int:
        request = sequence.request
        until = self.clock() + request.pin_seconds if request.pin_seconds else math.inf
        return self.pins.hold(request.pin, sequence.tables, sequence.tokens[: sequence.num_prompt], until)

    def _preempt(self, sequence: Sequence) -> None:
        self.stats.preemptions += 1
        self.running.remove(sequence)
        self._vacate(sequence)
        sequence.num_computed = 0
        self.waiting.add(sequence)
        self._given_way += 1

    def _finish(self, sequence: Sequence) -> None:
        sequence.finished = True
        del self._sequences[sequence.id]
        self._tenants.leave(sequence.request.tenant, self.clock())
        if sequence is self._kept:
            self._kept = None
        self.admission.forget(sequence)
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

    def _end_early(self, sequence: Sequence, error: str, code: str) -> None:
        self._failures.append(_failure(sequence, error, code))
        self._finish(sequence)

    def _take(self, step: int) -> _Issued:
        issued = self._issued.popleft()
        if issued.step != step:
            raise RuntimeError(f"the result of step {step} arrived, that of step {issued.step} was expected")
        return issued


def _failure(sequence: Sequence, error: str, code: str, param: str = "") -> TokenOutput:
    return TokenOutput(id=sequence.id, finish_reason="error", error=error, error_code=code, error_param=param)
