"""Which sequences have waited or run for too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llmk.api import LlmkError, QueueTimeout, RequestTimeout
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
    ) -> Iterator[tuple[Sequence, LlmkError]]:
        """Sequences to be ended, with the error. ``live`` are by arrival: so only the oldest are checked."""
        for sequence in live if self.request else ():
            if sequence.arrived + self.request > now:
                break
            error = _not_done(len(sequence.tokens) - sequence.num_prompt, now - sequence.arrived)
            yield sequence, error
        for sequence in waiting.overdue(now - self.queue) if self.queue else ():
            if not (self.request and sequence.arrived + self.request <= now):
                yield sequence, _not_started(now - sequence.arrived)

    def missed(self, num_tokens: int, age: float) -> LlmkError | None:
        """What a sequence of that age has missed that was not queued yet, and had ``num_tokens`` tokens of engines
        before this one."""
        if self.request and age >= self.request:
            return _not_done(num_tokens, age)
        return _not_started(age) if self.queue and age >= self.queue and not num_tokens else None


def _not_done(num_tokens: int, age: float) -> LlmkError:
    what = f"after {age:.1f} s it had {num_tokens} tokens (scheduler.request_timeout)"
    return RequestTimeout(f"the request was not done in time: {what}")


def _not_started(age: float) -> LlmkError:
    return QueueTimeout(f"the request was not started in time: it waited for {age:.1f} s (scheduler.queue_timeout)")
