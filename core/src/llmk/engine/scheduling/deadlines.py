"""Which sequences have waited or run for too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llmk.api import QueueTimeout, RequestTimeout
from llmk.engine.scheduling.sequence import Sequence
from llmk.engine.scheduling.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds from a sequence's arrival until it must be started (``queue``) and done (``request``); 0: no limit."""

    queue: float = 0.0
    request: float = 0.0

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return self.queue > 0 or self.request > 0

    def overdue(
        self, live: Iterable[Sequence], waiting: WaitingQueue, now: float
    ) -> Iterator[tuple[Sequence, str, str]]:
        """Sequences to be ended, with message and code. ``live`` are by arrival: so only the oldest are checked."""
        for sequence in live if self.request else ():
            if sequence.arrived + self.request > now:
                break
            made = len(sequence.tokens) - sequence.num_prompt
            what = f"after {now - sequence.arrived:.1f} s it had {made} tokens (scheduler.request_timeout)"
            yield sequence, f"the request was not done in time: {what}", RequestTimeout.code
        for sequence in waiting.overdue(now - self.queue) if self.queue else ():
            if not (self.request and sequence.arrived + self.request <= now):
                what = f"it waited for {now - sequence.arrived:.1f} s (scheduler.queue_timeout)"
                yield sequence, f"the request was not started in time: {what}", QueueTimeout.code
