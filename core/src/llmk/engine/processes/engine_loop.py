"""The engine's loop: takes commands between steps and sends their outputs. It runs in a thread or in a
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Protocol

from llmk.engine.core import EngineCore
from llmk.engine.processes.loop_messages import (
    Abort,
    Add,
    Close,
    Command,
    Failed,
    Ping,
    Pong,
    Ready,
    Reply,
    Stepped,
    Unpin,
)
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.request import EngineOutputs

LEAST_SPARE = 1e-3
"""Seconds for which it is worth it to wait for requests before the next step is issued."""
LOOK_SECONDS = 1e-3
"""How often to check whether the device has run out of work while the next step is put off."""
QUIET = 0.25
"""Seconds without work after which later steps are prepared. A request that comes meanwhile would wait for that, and
clients often send one when they have the answer to another."""


class Receive(Protocol):
    """Where commands come from."""

    def __call__(self, seconds: float | None) -> Iterable[Command]:
        """All commands that are there; waits for the first one, at most so long (``None``: for ever)."""
        ...


def run_engine(
    build: Callable[[], tuple[EngineCore, EngineInfo]], receive: Receive, send: Callable[[Reply], None]
) -> bool:
    """Builds an engine and runs it until it receives :class:`Close`. What goes wrong is sent, and makes the result
    ``False``.
    """
    try:
        core, info = build()
        with closing(core):
            send(Ready(info))
            _loop(core, receive, send)
    except BaseException as error:
        send(Failed(Failure.of(error)))
        return False
    return True


def _loop(core: EngineCore, receive: Receive, send: Callable[[Reply], None]) -> None:
    def announce(outputs: EngineOutputs) -> None:
        send(Stepped(outputs))

    quiet = False
    while True:
        commands = list(receive(_patience(core, quiet)))
        for command in commands:
            if isinstance(command, Close):
                return
            _obey(core, command, send)
        quiet = not (commands or core.has_work)
        if core.has_work:
            if core.spare_seconds() < LEAST_SPARE:
                send(Stepped(core.step(announce)))
        elif core.can_prepare and quiet:
            core.prepare()


def _obey(core: EngineCore, command: Add | Abort | Unpin | Ping, send: Callable[[Reply], None]) -> None:
    match command:
        case Add():
            for request in command.requests:
                core.add(request)
        case Abort():
            core.abort(command.ids)
            send(Stepped(EngineOutputs(stats=core.stats)))
        case Unpin():
            core.unpin(command.ids)
            send(Stepped(EngineOutputs(stats=core.stats)))
        case Ping():
            send(Pong(command.number, core.answers()))
            if ranks := core.runner.take_ranks():
                send(Stepped(EngineOutputs(stats=core.stats, ranks=ranks)))


def _patience(core: EngineCore, quiet: bool) -> float | None:
    """How long to wait for a command; ``None``: until one comes. ``quiet``: there was no work for :data:`QUIET`."""
    if core.has_work:
        return min(core.spare_seconds(), LOOK_SECONDS)
    if core.can_prepare:
        return 0.0 if quiet else QUIET
    return None
