"""Sends metrics to InfluxDB 2 or 3 by its HTTP API, in its line protocol: a line for each value.

A stat is a measurement of the same name with one field, ``value``; its labels, and the model's name as ``model``, are
tags. Counters are sent as they are, and ``increase`` of Flux or a difference of SQL shows their growth, also where they
start again. The environment's ``INFLUX_TOKEN`` authorizes.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import islice
from urllib.parse import urlencode, urlsplit

from llmk.api import Stat, StatLoggerContext, StatsSnapshot

from .plover_options import parse_options

BATCH = 5000
"""Lines of a request, as InfluxDB's authors advise."""
SECONDS = 1.5
"""How long a snapshot may take. What is not sent by then is dropped, as the next one is as good."""
SPACES = str.maketrans({"\n": " ", "\r": " ", "\t": " ", "\\": "/"})
"""What stands for characters that the protocol has no place for: a backslash escapes what is behind it, but not
itself."""
SPECIAL = str.maketrans({",": "\\,", " ": "\\ ", "=": "\\="})
SPECIAL_IN_NAMES = str.maketrans({",": "\\,", " ": "\\ "})

logger = logging.getLogger(__name__)


class Influx:
    """Follows ``llmk.api.StatLogger``."""

    def __init__(self, context: StatLoggerContext) -> None:
        """Connects to nothing yet."""
        options = parse_options(context.options)
        url = urlsplit(options.influx_url)
        self._connection_type = HTTPSConnection if url.scheme == "https" else HTTPConnection
        self._host = url.netloc
        query = {"org": options.influx_org, "bucket": options.influx_bucket, "precision": "us"}
        self._path = f"{url.path.rstrip('/')}/api/v2/write?{urlencode(query)}"
        self._model = context.model_name
        self._was_reached = True

    def record(self, snapshot: StatsSnapshot) -> None:
        """Sends all values that are numbers. A server that is away, or refuses them, is no error: it may be back at
        the next snapshot."""
        lines = self._lines(snapshot)
        end = time.monotonic() + SECONDS
        try:
            with closing(self._connection_type(self._host, timeout=SECONDS)) as connection:
                while batch := "".join(islice(lines, BATCH)):
                    _post(connection, self._path, batch.encode("utf-8", "replace"), end)
        except (OSError, HTTPException) as error:
            if self._was_reached:
                logger.warning("InfluxDB at %s does not take metrics, which are dropped: %s", self._host, error)
            self._was_reached = False
        else:
            self._was_reached = True

    def close(self) -> None:
        """Connections end with the snapshot that they are for."""

    def _lines(self, snapshot: StatsSnapshot) -> Iterator[str]:
        """A line for each stat; the protocol has no NaN and no infinity."""
        microseconds = round(snapshot.time * 1e6)
        for stat in snapshot.stats:
            if math.isfinite(stat.value):
                yield f"{_series(stat, self._model)} value={float(stat.value)!r} {microseconds}\n"


def _post(connection: HTTPConnection, path: str, body: bytes, end: float) -> None:
    """Sends a request, and reads the answer, so that the connection can be used again. Raises OSError where the server
    refuses it, or time is up."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"it took more than {SECONDS} seconds")
    connection.timeout = left
    if connection.sock is not None:
        connection.sock.settimeout(left)
    connection.request("POST", path, body, _headers(os.environ))
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        raise OSError(f"status {response.status}: {answer[:200].decode(errors='replace')}")


def _headers(environment: Mapping[str, str]) -> dict[str, str]:
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    if token := environment.get("INFLUX_TOKEN"):
        headers["Authorization"] = f"Token {token}"
    return headers


def _series(stat: Stat, model: str) -> str:
    """The measurement and its tags, sorted by name, which spares the server that. A tag can't be empty."""
    tags = {_escaped(name): _escaped(text) for name, text in {"model": model, **stat.labels}.items()}
    parts = [f"{name}={text}" for name, text in sorted(tags.items()) if name and text]
    return ",".join([stat.name.translate(SPACES).translate(SPECIAL_IN_NAMES), *parts])


def _escaped(text: str) -> str:
    return text.translate(SPACES).translate(SPECIAL)
