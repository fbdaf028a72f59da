"""The contract of stat loggers: plugins that carry the server's numbers to where they are wanted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """One number, under the name and with the labels that ``/metrics`` has (``docs/observability.md``).

    A ``"counter"`` only grows, but begins at 0 with the server, and what an engine counts again with each engine that
    replaces a dead one; a histogram is its counters ``_count``, ``_sum`` and ``_bucket``, the last with the label
    ``le``. Gauges may be NaN or infinite. Labels are the snapshot's, which others get too: they must not be changed.
    """

    name: str
    kind: Literal["gauge", "counter"]
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """All numbers at one moment: ``time`` is in seconds since 1970."""

    time: float
    stats: tuple[Stat, ...]


@dataclass(frozen=True, slots=True)
class StatLoggerContext:
    """What a logger is made with. ``options`` is its plugin's section of the configuration, ``interval`` the seconds
    between snapshots."""

    model_name: str
    interval: float
    options: Mapping[str, Any] = field(default_factory=dict)


class StatLogger(Protocol):
    """One instance serves one server: made in the server's thread, called from a thread of its own. It may block, and
    misses snapshots meanwhile. One that raises gets no more of them, and is closed. What it keeps doesn't grow with the
    number of snapshots."""

    def __init__(self, context: StatLoggerContext) -> None: ...

    @abstractmethod
    def record(self, snapshot: StatsSnapshot) -> None:
        """Called every ``interval`` seconds, and a last time when the server stops. Which stats there are may differ
        from one snapshot to the next, and there may be none."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Called at the end, whether :meth:`record` was called or not; again it does nothing. Threads, sockets and
        files are gone when it returns; a server waits 2 seconds for this and the last snapshot together."""
        ...
