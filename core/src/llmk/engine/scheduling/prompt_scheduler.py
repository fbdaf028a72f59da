"""Gives prompts what decoding leaves of a step, and admits waiting sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from llmk.api import Ticket
from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.scheduling.admission import Admission
from llmk.engine.scheduling.issued_step import IssuedStep
from llmk.engine.scheduling.live_sequences import LiveSequences
from llmk.engine.scheduling.prompt_limit import PromptLimit
from llmk.engine.scheduling.sequence import NO_SLOT, Sequence

_PASSED = 16
"""Long prompts that are passed over in search of a short one."""


class PromptScheduler:
    """Computes prompts in the policy's order, as far as the step's tokens and ``limit`` go.

    A prompt that is longer than a step has room for leaves half of it to others, and gets what these leave.

    Args:
        chunk: tokens that one step computes at most.
        chunked_prefill: whether a prompt may be computed in pieces.
    """

    def __init__(
        self,
        live: LiveSequences,
        cache: BlockCache,
        admission: Admission,
        limit: PromptLimit,
        *,
        chunk: int,
        chunked_prefill: bool,
    ) -> None:
        self.limit = limit
        self._live = live
        self._cache = cache
        self._admission = admission
        self._chunk = chunk
        self._chunked = chunked_prefill

    def schedule(self, step: IssuedStep, prefills: list[Sequence], first: Sequence | None) -> None:
        """Issues tokens of ``prefills``, which run, and of waiting sequences while there are tokens, slots and blocks.
        None is admitted before one for which there are too few blocks. ``first`` comes before all others.
        """
        if step.budget <= 0 or not (prefills or self._live.waiting):
            return
        if step.entries:
            step.room = self.limit.most()
        kept = step.budget // 2, step.room / 2 if step.room < math.inf else 0.0
        held: list[Sequence] = []
        for sequence, is_long in self._candidates(step, prefills, first, held):
            if is_long and not held:
                step.budget -= kept[0]
                step.room -= kept[1]
            if is_long:
                held.append(sequence)
            else:
                self.compute(step, sequence)
            if step.budget <= 0 or step.room <= 0:
                break
        if held:
            step.budget += kept[0]
            step.room += kept[1]
            shared = bool(step.entries)
            limit = self.limit.long(step.operations) if shared else self.limit.alone(held[0].num_computed)
            step.room = min(step.room, limit)
        for sequence in held:
            self.compute(step, sequence)

    def compute(self, step: IssuedStep, sequence: Sequence, most: int | None = None) -> None:
        """Issues the next tokens of a sequence, as many as the step has room for, or ``most``."""
        start = sequence.num_computed
        count = len(sequence.tokens) - start
        if self._chunked:
            count = min(count, step.budget if most is None else most)
            count = self.limit.tokens(start, count, step.room)
            self._cache.extend(sequence.tables, start + count)
            count = min(count, sequence.tables.capacity - start)
        if count > 0:
            operations = self.limit.operations(start, count)
            step.room -= operations
            step.operations += operations
            step.prompt_tokens += count
            step.issue(sequence, count)

    def _candidates(
        self, step: IssuedStep, prefills: list[Sequence], first: Sequence | None, held: list[Sequence]
    ) -> Iterator[tuple[Sequence, bool]]:
        """Prompts in their order, waiting ones once they are admitted, each with whether it is longer than the step has
        room for. While one of those is ``held``, waiting ones that are so too are passed over."""
        live, prompts, passed = self._live, len(prefills), 0
        waiting = live.waiting.tickets if live.free_slots else ()
        budget, room = step.budget, step.room
        tickets = (*(sequence.ticket for sequence in prefills), *waiting) if prompts else waiting
        for sequence in self._in_order(tickets, first):
            runs = sequence.slot != NO_SLOT
            if runs:
                prompts -= 1
            elif waiting and not self._admission.awaits_another(sequence):  # whose block will be a hit
                if held and self._is_long(sequence, self._admission.cached(sequence), budget, room):
                    passed += 1
                    waiting = waiting if passed < _PASSED else ()
                else:
                    runs = self._admit(step, sequence)
                    waiting = waiting if runs and live.free_slots else ()
            if runs:
                yield sequence, self._is_long(sequence, sequence.num_computed, budget, room)
            if not (prompts or waiting):
                return

    def _is_long(self, sequence: Sequence, start: int, budget: int, room: float) -> bool:
        """Whether what comes after the first ``start`` tokens is more than a step has room for."""
        rest = len(sequence.tokens) - start
        return self._chunked and (rest > budget or self.limit.operations(start, rest) > room)

    def _admit(self, step: IssuedStep, sequence: Sequence) -> bool:
        """Admits a waiting sequence; returns ``False`` where it must wait for tokens or blocks, and so must all after
        it."""
        length = len(sequence.tokens)
        room = max(step.budget, self._chunk - step.plan.num_tokens)
        whole = not self._chunked and length > room
        cached = None
        if not (sequence.num_pending or whole):
            cached = self._admission.take(sequence, len(self._live.running))
        if cached is None:
            return False
        self._live.enter(sequence, cached)
        step.plan.new.append(sequence.entering())
        return True

    def _in_order(self, tickets: tuple[Ticket, ...], first: Sequence | None) -> Iterator[Sequence]:
        """``first``, and then all others in the policy's order."""
        if first is not None:
            yield first
        for ticket in self._live.policy.order(tickets):
            sequence = self._live.of(ticket)
            if sequence is not first:
                yield sequence
