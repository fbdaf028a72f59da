"""The engine's next process, started before it is needed: importing takes longer than all else of a small model's
restart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from subprocess import Popen

from llmk.api import Plan
from llmk.engine.processes.spawn import AHEAD, spawn

CALM_SECONDS = 2.0
"""Seconds that a new engine has to itself before the process that would replace it starts to import."""


class Standby:
    """Has a process ready that has imported what an engine of the plan needs, once :meth:`prepare` was called. Needs a
    running event loop.
    """

    def __init__(self, plan: Plan, *, enabled: bool) -> None:
        self._modules = (AHEAD, *modules_of(plan))
        self._enabled = enabled
        self._process: Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, where there is one."""
        return self._process.pid if self._process is not None else None

    def prepare(self) -> None:
        """Starts the process soon."""
        if self._enabled and self._timer is None and self._process is None:
            self._timer = asyncio.get_running_loop().call_later(CALM_SECONDS, self._start)

    def take(self) -> Popen[bytes]:
        """The process, which is the caller's from now on; a new one where none is ready."""
        self._cancel()
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            return process
        return spawn(*self._modules)

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._cancel()
        self._enabled = False
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _start(self) -> None:
        self._timer = None
        with contextlib.suppress(OSError):  # no room for another process: the next engine is started when it is needed
            self._process = spawn(*self._modules, standby=True)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def modules_of(plan: Plan) -> list[str]:
    """The modules that hold what a plan names."""
    return sorted({location.partition(":")[0] for location in _locations(plan) if location})


def _locations(plan: Plan) -> Iterable[str]:
    yield from (plan.platform_implementation, plan.model_implementation)
    yield from (method.implementation for method in plan.quantization)
    for choice in plan.all_choices():
        for piece in choice.pieces:
            yield from (piece.implementation, piece.prepare)
