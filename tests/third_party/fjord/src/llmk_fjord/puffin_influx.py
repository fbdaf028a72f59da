"""A stat logger: InfluxDB's line protocol, added to a file that is renamed to ``FILE.1`` and so on when it is full.

A line is a metric with its labels as tags, the field ``value``, and, for a counter, ``delta``: what it grew by since
this logger last saw it. Times are in nanoseconds, of whole milliseconds.
"""

from __future__ import annotations

import math
import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from llmk.api import Stat, StatLoggerContext, StatsSnapshot

from .puffin_specs import Options

MOST_SERIES = 20_000
"""Counters whose last values are kept. The one that was not seen for longest is forgotten first."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f%\\\u0085\u2028\u2029\ud800-\udfff]")
_SPECIAL = re.compile(r"[ ,=]")
_Series = tuple[str, tuple[tuple[str, str], ...]]


class Influx:
    """Follows ``llmk.api.StatLogger``."""

    def __init__(self, context: StatLoggerContext) -> None:
        """Opens the file, so that a path that can't be written to stops the start."""
        options = Options.model_validate(dict(context.options))
        self._path = Path(options.influx_file).expanduser().absolute()
        self._limit, self._files, self._buckets = options.influx_bytes, options.influx_files, options.influx_buckets
        self._model = options.influx_model or context.model_name
        self._seen: OrderedDict[_Series, float] = OrderedDict()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = self._opened()
        if torn := self._unended():
            self._write(torn)

    def record(self, snapshot: StatsSnapshot) -> None:
        """Adds a line for each stat with a finite value; line protocol has no others."""
        if self._file is None:
            return
        stamp = f" {round(snapshot.time * 1000)}000000\n"
        lines = [line + stamp for stat in snapshot.stats if (line := self._line(stat))]
        data = "".join(lines).encode()
        if not data:
            return
        size = os.fstat(self._file).st_size
        if size and size + len(data) > self._limit:
            self._turn()
        self._write(data)

    def close(self) -> None:
        """Nothing is kept back, so there is nothing to write."""
        opened, self._file = self._file, None
        if opened is not None:
            os.close(opened)

    def _line(self, stat: Stat) -> str:
        if not self._buckets and stat.kind == "counter" and stat.name.endswith("_bucket"):
            return ""
        value = float(stat.value)
        if not math.isfinite(value):
            return ""
        fields = f"value={value!r}"
        if stat.kind == "counter":
            fields += f",delta={self._delta(stat, value)!r}"
        return f"{_measurement(stat.name)}{_tags(self._model, stat.labels)} {fields}"

    def _delta(self, stat: Stat, value: float) -> float:
        """What a counter grew by; one that is smaller than before started again at 0."""
        series = stat.name, tuple(sorted(stat.labels.items()))
        before = self._seen.pop(series, 0.0)
        self._seen[series] = value
        if len(self._seen) > MOST_SERIES:
            self._seen.popitem(last=False)
        return value - before if value >= before else value

    def _turn(self) -> None:
        """Begins a new file. The older ones move on by a number, and the last is overwritten."""
        assert self._file is not None
        os.close(self._file)
        self._file = None
        for number in range(self._files - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                os.replace(older, self._numbered(number))
        if self._files == 1:
            self._path.unlink(missing_ok=True)
        self._file = self._opened()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _unended(self) -> bytes:
        """The end of a line that a server which was killed did not write."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        return b"\n" if size and os.pread(self._file, 1, size - 1) != b"\n" else b""

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]


def _tags(model: str, labels: Mapping[str, str]) -> str:
    """Sorted by their keys, as databases like it. An empty tag is as good as none, and can't be written."""
    tags = {"model": model} | {("time_" if key == "time" else key): text for key, text in labels.items()}
    return "".join(f",{_escaped(key)}={_escaped(tags[key])}" for key in sorted(tags) if key and tags[key])


def _measurement(name: str) -> str:
    return re.sub(r"[ ,]", r"\\\g<0>", _safe(name))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", _safe(text))


def _safe(text: str) -> str:
    """Without what a line can't hold, such as its end, or a backslash, which would escape what follows."""
    return _UNSAFE.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), text
    )
