"""Writes metrics to InfluxDB in its line protocol, over HTTP (``POST /write``, which versions 1, 2 and 3 have).

A stat is a measurement of its name with its labels as tags, and one field, ``gauge`` or ``counter``. Counters are
written as they are: queries take their differences (``non_negative_derivative``), so restarts need nothing here.
"""

from __future__ import annotations

import http.client
import logging
import math
from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlencode, urlsplit

from llmk.api import Stat, StatLoggerContext, StatsSnapshot

from .crane_options import parsed

log = logging.getLogger(__name__)

SECONDS = 0.8
"""Longest wait for an answer. The server waits 2 seconds for the last snapshot and the end."""

ESCAPES = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ ", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Influx:
    """Follows ``llmk.api.StatLogger``. It keeps a connection, and nothing of what was written."""

    def __init__(self, context: StatLoggerContext) -> None:
        """An exception here stops the server's start, with its message."""
        options = parsed(context.options)
        url = urlsplit(options.influx_url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(url.netloc, timeout=SECONDS)
        query = urlencode({"db": options.influx_database, "precision": "ms"})
        self._target = f"{url.path.rstrip('/')}/write?{query}"
        self._headers = {"Content-Type": "text/plain; charset=utf-8"}
        if options.influx_token:
            self._headers["Authorization"] = f"Token {options.influx_token}"
        self._batch = options.influx_batch
        self._model = context.model_name

    def record(self, snapshot: StatsSnapshot) -> None:
        """An outage loses snapshots, and does not end the logger."""
        lines = self._lines(snapshot)
        while body := "".join(islice(lines, self._batch)):
            if not self._sent(body.encode("utf-8", "backslashreplace")):
                break

    def close(self) -> None:
        """Called at the end; a second call does nothing."""
        self._connection.close()

    def _lines(self, snapshot: StatsSnapshot) -> Iterator[str]:
        """NaN and infinities are left out: InfluxDB has none, and refuses a request that has one."""
        stamp = round(snapshot.time * 1000)
        for stat in snapshot.stats:
            if math.isfinite(stat.value):
                yield f"{stat.name}{self._tags(stat)} {stat.kind}={float(stat.value)!r} {stamp}\n"

    def _tags(self, stat: Stat) -> str:
        """Sorted, as InfluxDB advises. There are no empty tags in the protocol."""
        labels = {"model_name": self._model, **stat.labels}
        tags = ((name, tag_value(text)) for name, text in sorted(labels.items()))
        return "".join(f",{name}={text}" for name, text in tags if text)

    def _sent(self, body: bytes) -> bool:
        """Whether the server took it. A connection that it closed meanwhile is opened again, once."""
        for is_last in (self._connection.sock is None, True):
            try:
                self._connection.request("POST", self._target, body, self._headers)
                with self._connection.getresponse() as response:
                    answer = response.read(1000)
                    if response.read(1):
                        self._connection.close()  # a long answer is not read to its end
                if response.status >= 300:
                    log.warning("InfluxDB answers %d: %s", response.status, answer.decode(errors="replace"))
                return response.status < 300
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if is_last or isinstance(error, TimeoutError):
                    log.warning("InfluxDB can't be reached: %s", error)
                    return False
        return False


def tag_value(text: str) -> str:
    """The text of a tag. A backslash at its end would escape the comma or space behind it, and can't be written."""
    return text.rstrip("\\").translate(ESCAPES)
