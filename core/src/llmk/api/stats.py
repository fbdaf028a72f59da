"""The contract of stat loggers: plugins that export the server's metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """One value, with the name and labels that it has in ``/metrics`` (``docs/observability.md``).

    A ``"counter"`` only grows, but it starts at 0 with the server, and counters of the engine restart at 0 when a dead
    engine is replaced. A histogram is given as its counters ``_count``, ``_sum`` and ``_bucket``, the last with the
    label ``le``. Gauges may be NaN or infinite. Names, also of labels, are Prometheus's: ASCII letters, digits and
    ``_``, not starting with a digit; ``name`` may have ``:``, too. The texts of ``labels`` may be any, and come in any
    order; they are shared with other loggers and must not be changed.
    """

    name: str
    kind: Literal["gauge", "counter"]
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """All metrics at one time. ``time`` is in seconds since 1970, with fractions; two may have the same."""

    time: float
    stats: tuple[Stat, ...]


@dataclass(frozen=True, slots=True)
class StatLoggerContext:
    """The constructor argument of a stat logger. ``model_name`` may be any text, as that of a folder is. ``options`` is
    the plugin's section of the configuration, ``interval`` the seconds between snapshots."""

    model_name: str
    interval: float
    options: Mapping[str, Any] = field(default_factory=dict)


class StatLogger(Protocol):
    """Exports metrics. One instance per server, created in the server's thread and called from a separate thread.

    It may block; snapshots taken while it blocks are skipped. A logger that raises is closed and gets no more
    snapshots. Its memory must not grow with the number of snapshots, nor with stats that come and go, such as those
    of tenants: what it keeps of these must be bounded. A snapshot takes time in proportion to its stats.

    What it sends to may be away, also when it is made, refuse what it sends, or never answer: that is no error, no call
    takes more than 10 seconds for it, and what is recorded later arrives, from the third snapshot at the latest, once
    it takes it again. What was recorded meanwhile may be lost.
    """

    def __init__(self, context: StatLoggerContext) -> None: ...

    @abstractmethod
    def record(self, snapshot: StatsSnapshot) -> None:
        """Called every ``interval`` seconds, and once more when the server stops. Snapshots may contain different
        stats, or none."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Called at the end, whether or not :meth:`record` was called; a second call does nothing. It must release
        threads, sockets and files. The server waits 2 seconds for this call and the last snapshot together."""
        ...
