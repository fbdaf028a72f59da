"""A router whose results are checked, and which is replaced when it fails."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence

from llmk.api import Choice, PluginError, ReplicaState, RoutedRequest, Router, RouterContext
from llmk.api.errors import describe
from llmk.api.verdict import Reason
from llmk.engine.routing.least_work import LeastWork
from llmk.engine.wire.plugin_calls import is_interrupt
from llmk.kernel.loader import load_object

logger = logging.getLogger(__name__)

_Call = tuple[RoutedRequest, Sequence[ReplicaState], asyncio.Future[ReplicaState]]


class GuardedRouter:
    """Calls ``router``, in a thread, so that the event loop always goes on; without one, the built-in choice.

    A router that raises, takes longer than ``seconds``, or returns a replica that it was not given, is logged, and the
    built-in choice holds from then on, for that request too. ``failures`` counts it.
    """

    def __init__(
        self,
        router: Router | None = None,
        name: str = "",
        *,
        seconds: float = 1.0,
        context: RouterContext | None = None,
    ) -> None:
        self.name = name
        self.failures = 0
        self._seconds = seconds
        self._built_in = LeastWork(context or RouterContext())
        self._thread = _RouterThread(router) if router is not None and not isinstance(router, LeastWork) else None

    @classmethod
    def load(cls, choice: Choice, context: RouterContext, seconds: float) -> GuardedRouter:
        """Makes the router that the plan chose. Raises PluginError where it can't be imported or made."""
        (piece,) = choice.pieces
        wheel = f"{piece.distribution} {piece.version}"
        make = load_object(piece.implementation, plugin=wheel, kind="router", id=piece.id)
        try:
            router = make(context)
        except PluginError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            reason = Reason("router_raised", piece.implementation, describe(error))
            hint = "name another router with [select.router] use"
            raise PluginError(f"{piece.id} of {wheel} can't be made", reasons=[reason], hint=hint) from error
        return cls(router, f"{piece.id} of {wheel}", seconds=seconds, context=context)

    async def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """One of ``replicas``, of which there is one at least."""
        if self._thread is None or len(replicas) == 1:
            return self._built_in.choose(request, replicas)
        thread = self._thread
        try:
            chosen = await asyncio.wait_for(thread.ask(request, replicas), self._seconds)
            if not any(chosen is one for one in replicas):
                raise ValueError(f"choose() returned {chosen!r}, which was not among the replicas it was given")
            return chosen
        except TimeoutError:
            why = f"it did not answer for {self._seconds:g} s (replicas.router_seconds)"
        except Exception as error:
            why = describe(error)
        self._give_up(thread, why)
        return self._built_in.choose(request, replicas)

    def close(self) -> None:
        """Ends the thread once it returns."""
        if self._thread is not None:
            self._thread.end()
            self._thread = None

    def _give_up(self, thread: _RouterThread, why: str) -> None:
        if self._thread is not thread:  # another request found out first
            return
        self.close()
        self.failures += 1
        logger.error(
            "the router %s failed (%s); requests go to the replica with the least work until the server is restarted",
            self.name, why,
        )  # fmt: skip


class _RouterThread:
    """A thread that calls a router. One that never returns is left behind, and ends with the process."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="llmk-router", daemon=True).start()

    def ask(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> asyncio.Future[ReplicaState]:
        """The answer to come."""
        answer: asyncio.Future[ReplicaState] = asyncio.get_running_loop().create_future()
        self._calls.put((request, replicas, answer))
        return answer

    def end(self) -> None:
        """No call follows."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            request, replicas, answer = call
            try:
                chosen: ReplicaState | Exception = self._router.choose(request, replicas)
            except BaseException as error:
                chosen = RuntimeError(describe(error))
            try:
                answer.get_loop().call_soon_threadsafe(_settle, answer, chosen)
            except RuntimeError:  # the loop is closed, and no one waits
                return


def _settle(answer: asyncio.Future[ReplicaState], chosen: ReplicaState | Exception) -> None:
    if answer.done():
        return
    if isinstance(chosen, Exception):
        answer.set_exception(chosen)
    else:
        answer.set_result(chosen)
