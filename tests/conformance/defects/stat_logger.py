"""A stat logger that writes lines to a file, and ways to get one wrong."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from prometheus_client import CollectorRegistry, Counter
from pydantic import BaseModel, model_validator

from defects import Defect
from llmk.api import Stat, StatLoggerContext, StatsSnapshot
from llmk_testing.stat_examples import Runs, StatExamples
from llmk_testing.stat_receivers import connections, datagrams, posts


def lines(context: StatLoggerContext, runs: Runs) -> dict[str, bytes]:
    text = "".join(
        f"{one.time} {context.model_name} {stat.name} {dict(stat.labels)} {stat.value}\n"
        for one in runs[-1]
        for stat in one.stats
    )
    return {context.options["file"]: text.encode()}


def bodies(context: StatLoggerContext, runs: Runs) -> Iterator[str]:
    for one in (one for run in runs for one in run):
        yield lines(StatLoggerContext(context.model_name, 1.0, {"file": ""}), [[one]])[""].decode()


def posted(context: StatLoggerContext, runs: Runs) -> dict[str, bytes]:
    head = "POST /in\nauthorization: Bearer t\ncontent-type: text/plain\n"
    return {"posts": "".join(f"{head}{body}\n" for body in bodies(context, runs)).encode()}


def linked(context: StatLoggerContext, runs: Runs) -> dict[str, bytes]:
    return {"received": "".join(bodies(context, runs)).encode()}


def counted(context: StatLoggerContext, runs: Runs) -> dict[str, bytes]:
    return {"datagrams": "".join(f"{len(one.stats)}\n" for run in runs for one in run).encode()}


EXAMPLES = StatExamples(({"file": "stats.txt"}, {}), lines)
POSTS = StatExamples(({},), posted, posts("url", "/in"), {"STATS_TOKEN": "t"})
LINKS = StatExamples(({},), linked, connections("to", "at"))
COUNTS = StatExamples(({},), counted, datagrams("to", "at"))


class Options(BaseModel):
    file: str = "default.txt"
    url: str = ""
    to: str = ""
    at: int = 0


class Lax(Options):
    @model_validator(mode="before")
    @classmethod
    def known(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in cls.model_fields}


class Good:
    examples = "EXAMPLES"

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


class Posts(Good):
    """Sends a request for each snapshot."""

    examples = "POSTS"

    def __init__(self, context: StatLoggerContext) -> None:
        self.model = context.model_name
        self.url = context.options["url"]

    def record(self, snapshot: StatsSnapshot) -> None:
        body = "".join(self.line(snapshot, stat) + "\n" for stat in snapshot.stats).encode()
        with suppress(OSError, HTTPException):
            self.send(body)

    def send(self, body: bytes) -> None:
        request = Request(self.url, body, {"Content-Type": "text/plain", **self.token()})
        with urlopen(request, timeout=self.seconds()):
            pass

    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {os.environ['STATS_TOKEN']}"}

    def seconds(self) -> float | None:
        return 1.0

    def close(self) -> None:
        pass


class NoToken(Posts):
    def token(self) -> dict[str, str]:
        return {}


class DropsPath(Posts):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.url = f"http://{urlsplit(self.url).netloc}/in"


class AsksFirst(Posts):
    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        at = urlsplit(self.url)
        socket.create_connection((at.hostname or "", at.port or 80), timeout=1.0).close()


class CrashesRefused(Posts):
    def send(self, body: bytes) -> None:
        try:
            super().send(body)
        except HTTPError as error:
            raise RuntimeError("it was refused") from error


class GivesUp(Posts):
    fails = 0

    def send(self, body: bytes) -> None:
        if self.fails < 5:
            self.fails += 1
            super().send(body)
            self.fails = 0


class NoTimeout(Posts):
    def seconds(self) -> float | None:
        return None


class Links(Posts):
    """Sends over one connection, which it makes again where that broke."""

    examples = "LINKS"
    link: socket.socket | None = None

    def __init__(self, context: StatLoggerContext) -> None:
        self.model = context.model_name
        self.at = context.options["to"], context.options["at"]

    def send(self, body: bytes) -> None:
        try:
            self.link = self.link or socket.create_connection(self.at, timeout=1.0)
            self.link.sendall(body)
        except OSError:
            self.broke()

    def broke(self) -> None:
        self.close()
        self.link = None

    def close(self) -> None:
        if self.link is not None:
            self.link.close()


class OneLink(Links):
    def broke(self) -> None:
        pass


class Connected(Links):
    """Where nothing listens, the second datagram of a socket that is connected raises."""

    examples = "COUNTS"

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.link.connect(self.at)

    def record(self, snapshot: StatsSnapshot) -> None:
        assert self.link is not None
        self.link.send(str(len(snapshot.stats)).encode())


OUTAGES = "it goes on where what it sends to is away, refuses, never answers, or comes back"
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
    Defect("no token", "requests have no token, although there is one", NoToken, "those of its oracle"),
    Defect("drops path", "the path of the server's address is dropped", DropsPath, "those of its oracle"),
    Defect("asks first", "it can't be made while its server is away", AsksFirst, OUTAGES),
    Defect("refused", "a request that the server refuses is a crash", CrashesRefused, OUTAGES),
    Defect("gives up", "after some failures, nothing is sent any more", GivesUp, OUTAGES),
    Defect("no timeout", "a server that does not answer is waited for without an end", NoTimeout, OUTAGES),
    Defect("one link", "a connection that broke is not made again", OneLink, OUTAGES),
    Defect("connected", "a datagram that is not taken is a crash", Connected, OUTAGES),
)
