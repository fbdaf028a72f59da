"""A stat logger that writes lines to a file, and ways to get one wrong."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from pydantic import BaseModel, model_validator

from defects import Defect
from llmk.api import Stat, StatLoggerContext, StatsSnapshot
from llmk_testing.stat_examples import Runs, StatExamples


def lines(context: StatLoggerContext, runs: Runs) -> dict[str, bytes]:
    text = "".join(
        f"{one.time} {context.model_name} {stat.name} {dict(stat.labels)} {stat.value}\n"
        for one in runs[-1]
        for stat in one.stats
    )
    return {context.options["file"]: text.encode()}


EXAMPLES = StatExamples(({"file": "stats.txt"}, {}), lines)


class Options(BaseModel):
    file: str = "default.txt"


class Lax(Options):
    @model_validator(mode="before")
    @classmethod
    def known(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in cls.model_fields}


class Good:
    def __init__(self, context: StatLoggerContext) -> None:
        self.model = context.model_name
        self.file = Path(context.options["file"]).open("w")  # noqa: SIM115

    def record(self, snapshot: StatsSnapshot) -> None:
        for stat in snapshot.stats:
            self.file.write(self.line(snapshot, stat) + "\n")
        self.flush()

    def line(self, snapshot: StatsSnapshot, stat: Stat) -> str:
        return f"{snapshot.time} {self.model} {stat.name} {dict(stat.labels)} {stat.value}"

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class Buffers(Good):
    def flush(self) -> None:
        pass


class WithoutLabels(Good):
    def record(self, snapshot: StatsSnapshot) -> None:
        super().record(StatsSnapshot(snapshot.time, tuple(Stat(x.name, x.kind, x.value) for x in snapshot.stats)))


class FixedColumns(Good):
    columns: tuple[str, ...] = ()

    def record(self, snapshot: StatsSnapshot) -> None:
        values = {stat.name: stat.value for stat in snapshot.stats}
        self.columns = self.columns or tuple(values)
        self.file.write(",".join(str(values[name]) for name in self.columns) + "\n")


class FirstIsThere(Good):
    def record(self, snapshot: StatsSnapshot) -> None:
        self.file.write(snapshot.stats[0].name)
        super().record(snapshot)


class WholeNumbers(Good):
    def record(self, snapshot: StatsSnapshot) -> None:
        for stat in snapshot.stats:
            self.file.write(f"{stat.name} {int(stat.value)}\n")


class OnlyGrows(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.counter = Counter("all", "All that is counted.", registry=CollectorRegistry())
        self.before = 0.0

    def record(self, snapshot: StatsSnapshot) -> None:
        total = sum(stat.value for stat in snapshot.stats if stat.kind == "counter")
        self.counter.inc(total - self.before)
        self.before = total


class KeepsTimes(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.times: list[float] = []

    def record(self, snapshot: StatsSnapshot) -> None:
        super().record(snapshot)
        self.times.append(time.monotonic())


class KeepsSeries(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.sent: dict[str, float] = {}

    def record(self, snapshot: StatsSnapshot) -> None:
        super().record(snapshot)
        self.sent |= {f"{stat.name}{dict(stat.labels)}": stat.value for stat in snapshot.stats}


class TakesLabels(Good):
    def record(self, snapshot: StatsSnapshot) -> None:
        for stat in snapshot.stats:
            self.file.write(f"{stat.labels.pop('model_name', '')} {stat.name}\n")  # type: ignore[attr-defined]


class Datagrams(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def record(self, snapshot: StatsSnapshot) -> None:
        for stat in snapshot.stats:
            self.pair[0].send(f"{stat.name}{stat.labels}"[:60_000].encode())
            self.pair[1].recv(65536)


class OneModel(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.model = "org/model"


class Backslashes(Good):
    def line(self, snapshot: StatsSnapshot, stat: Stat) -> str:
        return super().line(snapshot, stat).replace("\\\\'", "\\'")


class Seconds(Good):
    def line(self, snapshot: StatsSnapshot, stat: Stat) -> str:
        return super().line(StatsSnapshot(float(int(snapshot.time)), snapshot.stats), stat)


class Rounds(Good):
    def line(self, snapshot: StatsSnapshot, stat: Stat) -> str:
        return super().line(snapshot, Stat(stat.name, stat.kind, round(stat.value, 6), stat.labels))


class Compares(Good):
    def record(self, snapshot: StatsSnapshot) -> None:
        super().record(StatsSnapshot(snapshot.time, tuple(self.new(snapshot.stats))))

    def new(self, stats: tuple[Stat, ...]) -> Iterator[Stat]:
        seen: list[Any] = []
        for stat in stats:
            key = stat.name, dict(stat.labels)
            for other in seen:
                if other == key:
                    break
            else:
                yield stat
            seen.append(key)


class WithThread(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.wake = threading.Event()
        threading.Thread(target=self.wake.wait, daemon=True, name="sender").start()


class SleepsAtTheEnd(Good):
    def close(self) -> None:
        time.sleep(2.2)
        super().close()


class FlushesAtTheEnd(Good):
    def close(self) -> None:
        self.file.flush()
        super().close()


class OpensLate(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        self.model, self.name = context.model_name, context.options["file"]

    def record(self, snapshot: StatsSnapshot) -> None:
        if not hasattr(self, "file"):
            self.file = Path(self.name).open("w")  # noqa: SIM115
        super().record(snapshot)


class OwnThread(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table stats (name text, value real)")

    def record(self, snapshot: StatsSnapshot) -> None:
        rows = [(stat.name, stat.value) for stat in snapshot.stats]
        self.database.executemany("insert into stats values (?, ?)", rows)


class NeedsMore(Good):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.host = context.options["host"]


CLOSED = "it can be closed before the first snapshot, and twice"
GONE = "nothing that it opened or started outlives it"
DEFECTS = (
    Defect(
        "columns",
        "the first snapshot's stats are looked for in all others",
        FixedColumns,
        "one without stats that were there",
    ),
    Defect("first", "there is taken to be at least one stat", FirstIsThere, "one without stats"),
    Defect(
        "whole",
        "values are made whole numbers, which NaN isn't",
        WholeNumbers,
        "gauges of any value, NaN and infinity too",
    ),
    Defect(
        "grows",
        "a counter's differences are taken to be positive",
        OnlyGrows,
        "counters that restart at 0, with another engine",
    ),
    Defect(
        "keeps",
        "a number of every snapshot is kept",
        KeepsTimes,
        "its memory does not grow with the number of snapshots",
    ),
    Defect("series", "counters that are gone are kept", KeepsSeries, "does not grow with counters that are gone"),
    Defect("buffers", "what was recorded is in no file yet", Buffers, "those of its oracle"),
    Defect("one model", "the model's name is a fixed one", OneModel, "those of its oracle"),
    Defect("backslash", "a backslash at the end of a label's text is lost", Backslashes, "those of its oracle"),
    Defect("seconds", "times are cut to seconds", Seconds, "those of its oracle"),
    Defect("rounds", "small numbers are rounded", Rounds, "those of its oracle"),
    Defect("compares", "each stat is compared with all before it", Compares, "in proportion to its stats"),
    Defect("no labels", "series of one name are taken for one", WithoutLabels, "those of its oracle"),
    Defect("labels", "labels are taken out of snapshots", TakesLabels, "snapshots stay as they are"),
    Defect("socket", "a socket is left open", Datagrams, GONE),
    Defect("thread", "a thread is left running", WithThread, GONE),
    Defect(
        "sleeps",
        "the end takes longer than a server waits",
        SleepsAtTheEnd,
        "the last snapshot and its end take no longer than a server waits",
    ),
    Defect("twice", "a second close raises", FlushesAtTheEnd, CLOSED),
    Defect("late", "what is opened by the first snapshot is closed without one", OpensLate, CLOSED),
    Defect("own thread", "it works in the thread alone that made it", OwnThread, "one without stats that were there"),
    Defect("needs", "an option is read that the schema doesn't have", NeedsMore, "labels of any text"),
)
