"""Requests that are being answered, and what of their answers waits to be taken."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from llmk.api import LlmkError, RequestError
from llmk.engine.text.output_processor import GenerationDelta, SequenceOutput
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.request import EngineRequest, TokenOutput

JOINED = 64
"""Tokens and log-probabilities up to which what waits to be taken is made one delta with what comes next: sending each
by itself costs a front end that is behind more than it costs the client to have several at once."""


class AnswerNotRead(RequestError):
    """The client reads its answer too slowly."""

    code, http_status = "answer_not_read", 408


class UnreadCounter:
    """Counts what waits to be taken: tokens and log-probabilities, in all and by tenant. The engine does not wait for
    slow readers, so that this alone bounds what the front end holds for a client that does not read.
    """

    def __init__(self, most: int, most_per_tenant: int) -> None:
        self._most = most
        self._most_per_tenant = most_per_tenant
        self.tenants: Counter[str] = Counter()

    def add(self, tenant: str, size: int) -> None:
        """Something waits, or (below zero) was taken."""
        self.tenants[tenant] += size
        if not self.tenants[tenant]:
            del self.tenants[tenant]

    def over(self) -> tuple[str, str] | None:
        """Whose most must end, with the name of the bound; ``None`` while all is within bounds."""
        if not self.tenants:
            return None
        ((tenant, size),) = self.tenants.most_common(1)
        if tenant and size > self._most_per_tenant:  # requests of this very process have no tenant
            return tenant, "server.max_unread_per_client"
        return (tenant, "server.max_unread") if self.tenants.total() > self._most else None


class OutputStream:
    """A request that is being answered: its sequences that have not ended, and what was not yet taken from it."""

    def __init__(self, first: EngineRequest, unread: UnreadCounter) -> None:
        self.tenant = first.context.tenant
        self.request_id = first.context.log_id
        self.sequences: dict[str, SequenceOutput] = {}
        self.held = 0
        """How much waits."""
        self._unread = unread
        self._ready: deque[GenerationDelta] = deque()
        self._growing: dict[int, GenerationDelta] = {}
        """The last of them of each choice."""
        self._error: LlmkError | None = None
        self._some = asyncio.Event()

    def take(self, output: TokenOutput, time: float) -> bool:
        """Adds an output of ``time``, which who waits gets with :meth:`wake`; returns whether its sequence has
        ended."""
        if output.finish_reason == "error":
            del self.sequences[output.id]
            self.fail(Failure.in_output(output).error())
            return True
        delta = self.sequences[output.id].take(output, time)
        self._add(delta)
        if delta.finish_reason is None:
            return False
        del self.sequences[output.id]
        return True

    def _add(self, delta: GenerationDelta) -> None:
        """Adds a delta to what waits, or to the last one of its choice that does."""
        waiting = self._growing.get(delta.index)
        if waiting is not None and waiting.joins(delta) and size_of(waiting) + size_of(delta) <= JOINED:
            self._hold(size_of(delta) - 1)
            waiting.join(delta)
            return
        self._growing[delta.index] = delta
        self._ready.append(delta)
        self._hold(size_of(delta))

    def wake(self) -> None:
        """Has who waits for a delta go on."""
        self._some.set()

    def fail(self, error: LlmkError) -> None:
        """Ends the request with ``error``, once what came before has been taken."""
        self._error = self._error or error
        self._some.set()

    def drop(self) -> None:
        """What waits is not taken any more."""
        self._ready.clear()
        self._growing.clear()
        self._hold(-self.held)

    @property
    def holds_one(self) -> bool:
        """Whether nothing waits but one delta, which always may."""
        return len(self._ready) == 1

    async def next(self) -> GenerationDelta:
        """Waits for the next delta; raises what the request failed with."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            self._some.clear()
            await self._some.wait()
        delta = self._ready.popleft()
        if self._growing[delta.index] is delta:
            del self._growing[delta.index]
        self._hold(-size_of(delta))
        return delta

    def _hold(self, size: int) -> None:
        self.held += size
        self._unread.add(self.tenant, size)


def size_of(delta: GenerationDelta) -> int:
    """Tokens and log-probabilities of a delta."""
    size = 1 + len(delta.token_ids)
    if delta.logprobs or delta.prompt_logprobs:
        logprobs = (*delta.logprobs, *delta.prompt_logprobs)
        size += sum(1 + len(one.top) for one in logprobs if one is not None)
    return size
