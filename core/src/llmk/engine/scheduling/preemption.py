"""Preemption: which running sequences are preempted, so that others get slots and blocks."""

from __future__ import annotations

from llmk.api import NotEnoughMemory, Ticket
from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.cache.pinned_blocks import PinnedBlocks
from llmk.engine.scheduling.admission import Admission
from llmk.engine.scheduling.live_sequences import LiveSequences
from llmk.engine.scheduling.sequence import Sequence


class Preemption:
    """Makes room among the live sequences. The policy names those to preempt."""

    def __init__(self, live: LiveSequences, admission: Admission, cache: BlockCache, pins: PinnedBlocks) -> None:
        self._live = live
        self._admission = admission
        self._cache = cache
        self._pins = pins

    def displace(self) -> Sequence | None:
        """Preempts others in favor of the first waiting sequence, where there is no room for it and the policy permits;
        returns the sequence if it did."""
        live, policy = self._live, self._live.policy
        if not live.waiting or not policy.displaces or (live.free_slots and not self._admission.refused):
            return None
        newcomer = live.of(next(policy.order(live.waiting.tickets)))
        if newcomer.num_pending or self._admission.awaits_another(newcomer):
            return None
        first = None
        while not live.free_slots or self._admission.is_short(newcomer, len(live.running)):
            victim = policy.displaced(self._preemptible(), newcomer.ticket)
            if victim is None:
                break
            live.preempt(live.of(victim))
            first = newcomer
        return first

    def make_room(self, sequence: Sequence, *, in_flight: bool) -> bool:
        """Gets blocks for one more token of a running sequence, and preempts others, or the sequence itself, where none
        are free; returns whether the sequence can go on. ``in_flight``: results of steps have yet to arrive."""
        live = self._live
        while not self._cache.extend(sequence.tables, sequence.num_computed + 1):
            alone = len(live.running) == 1
            if alone and in_flight:
                return False  # the steps in flight may give blocks back
            if alone and self._pins.drop_oldest():
                continue
            if alone:
                blocks = self._cache.num_blocks
                error = f"its {len(sequence.tokens)} tokens fill the cache of {blocks} blocks"
                live.fail(sequence, NotEnoughMemory(error))
                return False
            victim = live.of(live.policy.victim(self._preemptible()))
            live.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preemptible(self) -> tuple[Ticket, ...]:
        return tuple([sequence.ticket for sequence in self._live.running if sequence is not self._live.protected])
