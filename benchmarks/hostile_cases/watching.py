"""The observers' processes, and what they have seen so far."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from hostile_cases.observers import SAMPLE
from hostile_cases.wire import Target

SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to an observer."""

    began: float
    ended: float
    first: float
    late: float
    fine: bool

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Observer:
    """A process that observes the server, and what it has seen so far."""

    def __init__(self, observe: Callable[[Target, Connection], None], target: Target) -> None:
        self.samples: list[Sample] = []
        self._here, there = SPAWN.Pipe(duplex=False)
        self._process = SPAWN.Process(target=observe, args=(target, there), daemon=True)
        self._process.start()
        there.close()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.samples.append(Sample(*SAMPLE.unpack(self._here.recv_bytes())))

    def between(self, start: float, end: float) -> list[Sample]:
        """What it saw then."""
        return [sample for sample in self.samples if sample.ended >= start and sample.began <= end]

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.join()
        self._here.close()


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0
