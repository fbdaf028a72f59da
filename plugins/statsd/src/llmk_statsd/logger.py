"""StatsD over UDP: lines of ``name:value|type``, several per datagram
(https://github.com/statsd/statsd/blob/master/docs/metric_types.md)."""

from __future__ import annotations

import contextlib
import math
import re
import socket
from collections.abc import Iterable, Iterator

from llmk.api import Stat, StatLoggerContext, StatsSnapshot

_BUCKET = "_bucket"
"""Buckets are not sent, only sums and counts of histograms: daemons compute distributions only from raw values."""

_MOST_COUNTERS = 10_000
"""Counters of which what was sent is remembered: one that comes back later is sent again, as that of a new engine."""


class StatsD:
    """Sends gauges, and the increments of counters that increased."""

    def __init__(self, context: StatLoggerContext) -> None:
        options = context.options
        self._prefix = f"{options['prefix']}." if options["prefix"] else ""
        self._tags, self._max_bytes = options["tags"], options["max_bytes"]
        self._sent: dict[str, float] = {}
        found = socket.getaddrinfo(options["host"], options["port"], type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        self._address = address
        self._socket = socket.socket(family, kind)

    def record(self, snapshot: StatsSnapshot) -> None:
        """Sends the changes. Datagrams that can't be delivered, because no daemon is listening, are lost."""
        for datagram in self._packed(self._lines(snapshot.stats)):
            with contextlib.suppress(OSError):  # such as a temporary network failure
                self._socket.sendto(datagram, self._address)
        for name in list(self._sent)[: max(0, len(self._sent) - max(_MOST_COUNTERS, len(snapshot.stats)))]:
            del self._sent[name]

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _lines(self, stats: Iterable[Stat]) -> Iterator[bytes]:
        for stat in stats:
            if stat.name.endswith(_BUCKET) or not math.isfinite(stat.value):  # not representable in the protocol
                continue
            name, tags = self._name(stat)
            if stat.kind == "gauge":
                # A sign would mean a change of the gauge, so a negative value is sent as a change from 0.
                zero = [f"{name}:0|g{tags}"] if stat.value < 0 else []
                yield "\n".join([*zero, f"{name}:{_number(stat.value)}|g{tags}"]).encode()
                continue
            before = self._sent.get(name + tags, 0.0)
            grown = stat.value - (
                before if before <= stat.value else 0.0
            )  # a decrease means that a new engine counts from 0
            # The last are those that were there last.
            self._sent.pop(name + tags, None)
            self._sent[name + tags] = stat.value
            if grown > 0:
                yield f"{name}:{_number(grown)}|c{tags}".encode()

    def _name(self, stat: Stat) -> tuple[str, str]:
        """The name, with its label values as further name parts or as tags."""
        name = self._prefix + _plain(stat.name.removeprefix("llmk_"))
        if self._tags:
            pairs = [f"{_plain(label)}:{_plain(value)}" for label, value in stat.labels.items()]
            return name, f"|#{','.join(pairs)}" if pairs else ""
        return ".".join([name, *map(_plain, stat.labels.values())]), ""

    def _packed(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Packs lines into as few datagrams as possible."""
        datagram = b""
        for line in lines:
            if datagram and len(datagram) + 1 + len(line) > self._max_bytes:
                yield datagram
                datagram = b""
            datagram += b"\n" + line if datagram else line
        if datagram:
            yield datagram


def _plain(text: str) -> str:
    """``text`` without separators of name parts, values and tags."""
    return re.sub(r"[^\w-]+", "_", text.strip("/"))


def _number(value: float) -> str:
    """Formats a number without an exponent, to six decimal places."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
