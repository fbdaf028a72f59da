"""The sequences that wait or run: their slots and blocks, and how they end."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from llmk.api import LlmkError, RequestError, Ticket
from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.scheduling.admission import Admission
from llmk.engine.scheduling.deadlines import Deadlines
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.scheduling.sequence import NO_SLOT, Sequence, arrival_of
from llmk.engine.scheduling.step_limit import Tenants
from llmk.engine.scheduling.waiting_queue import WaitingQueue
from llmk.engine.wire.request import EngineRequest, EngineStats, TokenOutput


class LiveSequences:
    """All sequences that have not ended, in the order of their arrival.

    A sequence waits until it is admitted, and runs until it ends or is preempted: then it gives back its slot and its
    blocks, and waits again. The policy names the one to preempt. So that every sequence ends no matter which the policy
    names, the oldest running sequence is protected once many were preempted and none has ended: it runs first, and is
    not preempted, until it ends.
    """

    def __init__(
        self,
        max_num_seqs: int,
        admission: Admission,
        cache: BlockCache,
        policy: GuardedPolicy,
        stats: EngineStats,
        clock: Callable[[], float],
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self.freed_slots: list[int] = []
        """Slots that were freed since the last plan."""
        self.failures: list[TokenOutput] = []
        """Outputs of sequences that failed outside of a step."""
        self.tenants = Tenants()
        self.protected: Sequence | None = None
        """The running sequence that is not preempted."""
        self.drafting: Drafting | None = None
        """What drafts tokens, and must know which sequences have ended."""
        self._admission = admission
        self._cache = cache
        self._stats = stats
        self._by_id: dict[str, Sequence] = {}
        self._preemptions = 0
        """Preemptions since a sequence ran to its end."""
        self._most_preemptions = 2 * max_num_seqs

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> Sequence | None:
        """The sequence with that id, if it has not ended."""
        return self._by_id.get(id)

    def of(self, ticket: Ticket) -> Sequence:
        """The sequence of a ticket."""
        return self._by_id[ticket.id]

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence. One that can never fit fails."""
        if problem := self._admission.why_never(sequence):
            self.failures.append(failed(sequence, problem, RequestError.code))
            return
        self._by_id[sequence.id] = sequence
        self.tenants.enter(sequence.request.context.tenant)
        self.waiting.add(sequence)

    def refuse(self, request: EngineRequest, error: LlmkError) -> None:
        """Fails a sequence that can't be queued."""
        self.failures.append(failed_by(request.id, error))

    def refuse_late(self, request: EngineRequest, age: float, deadlines: Deadlines) -> bool:
        """Fails a sequence of that age that can't be queued yet, if it has missed a deadline; whether it has."""
        missed = deadlines.missed(len(request.generated_token_ids), age)
        if missed is not None:
            self._stats.timeouts += 1
            self.refuse(request, missed)
        return missed is not None

    def enter(self, sequence: Sequence, num_cached: int) -> None:
        """Moves a waiting sequence into the batch. The first ``num_cached`` of its tokens are in the cache."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=arrival_of)
        sequence.slot = self.free_slots.pop()
        sequence.num_computed = num_cached
        sequence.num_late = 0
        sequence.admissions += 1
        if sequence.admissions == 1:
            stats = self._stats
            sequence.admitted = self.clock()
            sequence.num_cached = num_cached
            stats.prompt_tokens += sequence.num_prompt
            stats.prefix_queried_tokens += sequence.num_prompt
            stats.prefix_hit_tokens += num_cached

    def finish(self, sequence: Sequence, *, completed: bool = False) -> None:
        """Ends a sequence. ``completed``: it ran to its end."""
        if completed:
            self._preemptions = 0
        sequence.finished = True
        del self._by_id[sequence.id]
        self.tenants.leave(sequence.request.context.tenant, self.clock())
        if sequence is self.protected:
            self.protected = None
        self._admission.forget(sequence)
        if self.drafting is not None:
            self.drafting.leave(sequence)
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._vacate(sequence)

    def fail_overdue(self, deadlines: Deadlines) -> None:
        """Fails the sequences that miss their deadlines."""
        overdue = list(deadlines.overdue(self._by_id.values(), self.waiting, self.clock()))
        self._stats.timeouts += len(overdue)
        for sequence, error in overdue:
            self.fail(sequence, error)

    def protect(self) -> None:
        """Protects the oldest running sequence from preemption, where that has become necessary."""
        if self._preemptions > self._most_preemptions and self.protected is None and self.running:
            self.protected = self.running[0]

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence out of the batch, and queues it again."""
        self._stats.preemptions += 1
        self.running.remove(sequence)
        self._vacate(sequence)
        sequence.num_computed = 0
        self.waiting.add(sequence)
        self._preemptions += 1

    def _vacate(self, sequence: Sequence) -> None:
        self._cache.release(sequence.tables)
        self.free_slots.append(sequence.slot)
        self.freed_slots.append(sequence.slot)
        sequence.slot = NO_SLOT

    def fail(self, sequence: Sequence, error: LlmkError) -> None:
        """Ends a sequence with an error."""
        self.failures.append(failed_by(sequence.id, error))
        self.finish(sequence)


def failed(sequence: Sequence, error: str, code: str) -> TokenOutput:
    """The last output of a sequence that fails."""
    return TokenOutput(id=sequence.id, finish_reason="error", error=error, error_code=code)


def failed_by(id: str, error: LlmkError) -> TokenOutput:
    """The last output of the sequence with that id, which fails with an error that was raised."""
    param = getattr(error, "param", None) or ""
    return TokenOutput(id=id, finish_reason="error", error=str(error), error_code=error.code, error_param=param)
