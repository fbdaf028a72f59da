"""Whether a stat logger goes on where what it sends to is away at first, refuses, never answers, or comes back."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmk.api import StatLogger, StatLoggerContext, StatsSnapshot
from llmk_testing.case import Skip
from llmk_testing.stat_examples import Receiver, StatExamples
from llmk_testing.stats import LoggerThread, usual_snapshot

MISSED, BACK = 12, 3
"""Snapshots of an outage, and after it, by the last of which one must have arrived."""
ARRIVAL = 1.0
"""Seconds that what is sent may take to arrive."""
PORTS = range(20_000, 30_000)
"""Those that systems choose for no one by themselves, so that one stays free while its server is away."""


def sending(examples: Any) -> tuple[StatExamples, Receiver]:
    """The examples, and what the logger sends to. Raises Skip where that is in none."""
    if not isinstance(examples, StatExamples) or examples.receiver is None:
        raise Skip("it is tried with no server that is away, as its examples have no StatExamples with a receiver")
    return examples, examples.receiver


def free_port() -> int:
    """One where nothing listens, neither over TCP nor over UDP."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port


class Outages:
    """A logger whose server is often away. ``folder`` is that of the receiver's file."""

    def __init__(self, examples: StatExamples, receiver: Receiver, folder: Path, port: int) -> None:
        self._examples, self._receiver = examples, receiver
        self._folder, self._port = folder, port
        self._recorded: list[StatsSnapshot] = []

    def options(self) -> Mapping[str, Any]:
        """Where the server will be."""
        with self._receiver(self._folder, self._port, "takes") as more:
            return more

    def run(self, kind: Callable[[StatLoggerContext], StatLogger], context: StatLoggerContext) -> None:
        """One outage after the other."""
        with LoggerThread(kind, context) as logger:
            self._miss(logger, MISSED)
            self._arrives(logger, context, "was away when the logger was made")
            with self._receiver(self._folder, self._port, "refuses"):
                self._miss(logger, MISSED)
            self._arrives(logger, context, "refused some snapshots")
            with self._receiver(self._folder, self._port, "hangs"):
                self._miss(logger, 1)
            self._arrives(logger, context, "did not answer")
            self._miss(logger, MISSED)
            self._arrives(logger, context, "was away for some snapshots")

    def _miss(self, logger: LoggerThread, count: int) -> None:
        for _ in range(count):
            self._record(logger)

    def _record(self, logger: LoggerThread) -> None:
        self._recorded.append(usual_snapshot(len(self._recorded)))
        logger.record(self._recorded[-1])

    def _arrives(self, logger: LoggerThread, context: StatLoggerContext, what: str) -> None:
        """Once one came through, the next is what the oracle says."""
        with self._receiver(self._folder, self._port, "takes"):
            before = self._received()
            for _ in range(BACK):
                self._record(logger)
                if _waited(lambda: self._received() != before):
                    break
            else:
                raise AssertionError(f"nothing of {BACK} snapshots arrives at a server that takes them, but {what}")
            self._record(logger)
            right = self._last(context)
            _waited(lambda: self._ends_with(right))
            assert self._ends_with(right), (
                f"after the server {what}, the second snapshot that arrives is not that of the oracle: "
                f"{self._received()} ends not with {right}"
            )

    def _received(self) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in self._folder.iterdir() if path.is_file()}

    def _last(self, context: StatLoggerContext) -> Mapping[str, bytes]:
        """What the oracle adds to each file for the last snapshot; nothing where it doesn't add."""
        before = self._examples.oracle(context, [self._recorded[:-1]])
        after = self._examples.oracle(context, [self._recorded])
        return {
            name: data[len(before.get(name, b"")) :] if data.startswith(before.get(name, b"")) else b""
            for name, data in after.items()
        }

    def _ends_with(self, right: Mapping[str, bytes]) -> bool:
        found = self._received()
        return all(found.get(name, b"").endswith(data) for name, data in right.items())


def _waited(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + ARRIVAL
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
