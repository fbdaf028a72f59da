"""Test helpers for stat loggers: ordinary and unusual snapshots, and a thread per logger, as in the server."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from llmk.api import Stat, StatLogger, StatLoggerContext, StatsSnapshot
from llmk.api.errors import describe
from llmk_testing.parsers import counted_lines

CALL_SECONDS = 10.0
"""Timeout of a call in seconds."""

_START = 1_780_000_000.0
MODELS = ("org/model", 'folder/a model, "b"=c\\')
"""Names of models; folders may have any."""
_MODEL = {"model_name": MODELS[0]}
_TEXTS = (
    "",
    'a "b"',
    "é, {x}",
    "a\nb",
    "a\\",
    "\\",
    'a\\"b',
    "a\\nb",
    " a ",
    "a=b c",
    "a|b:c#d;e",
    "\r\tx",
    "%s %41",
    "7",
    "日本",
)
"""Texts of labels."""
_NAMES = ("llmk:rule:sum", "Upper_9", "_x", "a")
"""Names of stats; labels have no colon in theirs."""
_NUMBERS = (0.1 + 0.2, 1e-9, -1e-9, 1e22, 2.0**53 + 2, -3.0, -0.5, 123456789.125, 1e-300, -0.0, 1.0)
"""Numbers of gauges."""


class LoggerThread:
    """A logger as in the server: created in one thread, called and closed in another. Exceptions of its methods, and
    calls that don't return, raise ``AssertionError``; leaving the context closes it."""

    def __init__(self, kind: Callable[[StatLoggerContext], StatLogger], context: StatLoggerContext) -> None:
        try:
            self._logger = kind(context)
        except Exception as error:
            raise AssertionError(f"with {dict(context.options)} it can't be created: {describe(error)}") from error
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        self._closed = self._stuck = False
        self._thread = threading.Thread(target=self._work, name="llmk-stats", daemon=True)
        self._thread.start()

    def __enter__(self) -> LoggerThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._closed and not self._stuck:
                self.close()
        finally:
            self._calls.put(None)
            self._thread.join(0 if self._stuck else None)

    def record(self, snapshot: StatsSnapshot) -> None:
        """Calls its ``record`` with ``snapshot``."""
        self._do(f"record of {len(snapshot.stats)} stats", lambda: self._logger.record(snapshot))

    def counted(self, snapshot: StatsSnapshot) -> int:
        """Calls its ``record`` with ``snapshot``; returns the lines of Python that ran."""
        lines: list[int] = []
        self._do("record", lambda: lines.append(counted_lines(lambda: self._logger.record(snapshot))))
        return lines[0]

    def close(self) -> None:
        """Calls its ``close``."""
        what, self._closed = "a second close" if self._closed else "close", True
        self._do(what, self._logger.close)

    def _do(self, what: str, call: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._calls.put((call, done))
        try:
            error = done.exception(CALL_SECONDS)
        except TimeoutError:
            self._stuck = True
            raise AssertionError(f"{what} did not return within {CALL_SECONDS:g} s") from None
        if error is not None:
            raise AssertionError(f"{what} raised {describe(error)}") from error

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, done = item
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)


def usual_snapshot(step: int) -> StatsSnapshot:
    """A server's snapshot after ``step`` intervals: gauges, counters and a histogram."""
    return _snapshot(step, _usual(step))


def new_series(step: int, count: int) -> StatsSnapshot:
    """A snapshot of ``count`` counters that were in none before, such as those of tenants that come and go."""
    labels = [{"tenant": f"{step}-{i}", **_MODEL} for i in range(count)]
    return _snapshot(step, [Stat("llmk_served_tokens_total", "counter", 1.0, each) for each in labels])


def many_series(count: int) -> StatsSnapshot:
    """A snapshot of ``count`` gauges and as many counters."""
    labels = [{"site": f"layer {i}", **_MODEL} for i in range(count)]
    kinds: tuple[tuple[str, Any], ...] = (("llmk_size", "gauge"), ("llmk_calls_total", "counter"))
    return _snapshot(1, [Stat(name, kind, 1.0, each) for each in labels for name, kind in kinds])


def odd_snapshots() -> Mapping[str, Sequence[StatsSnapshot]]:
    """By description, sequences of consecutive snapshots."""
    usual, new = (
        list(_usual(1)),
        Stat("llmk_request_timeouts_total", "counter", 3.0, {"path": "/v1/new", "code": "503"}),
    )
    odd = [math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1e308, float(2**63)]
    texts = (*_TEXTS, "a\nb\t\x00c", "a|b:c#d,e=f{g}", "名前 é", "x" * 70_000)
    many = [Stat("llmk_calls_total", "counter", i, {"site": f"layer {i}", **_MODEL}) for i in range(3000)]
    return {
        "one without stats": [_snapshot(0, [])],
        "stats that were not there before": [_snapshot(1, usual[:1]), _snapshot(2, [*usual, new])],
        "one without stats that were there": [_snapshot(1, [*usual, new]), _snapshot(2, usual[2:])],
        "gauges of any value, NaN and infinity too": [
            _snapshot(i, [Stat("llmk_odd", "gauge", value, _MODEL)]) for i, value in enumerate(odd)
        ],
        "counters that restart at 0, with another engine": [usual_snapshot(100), usual_snapshot(0)],
        "labels of any text": [_snapshot(1, [Stat("llmk_odd_total", "counter", 1.0, {"path": t}) for t in texts])],
        "thousands of stats": [_snapshot(1, many)],
        "a clock that was set back": [usual_snapshot(1), usual_snapshot(-1000), _snapshot(-1000, usual)],
    }


def restarted(longest: int) -> Iterator[Sequence[StatsSnapshot]]:
    """What two loggers record, one after the other: counters that stand still, restart at 0, together or one alone, and
    come back after they were away, labels and stats in another order, numbers and texts of any kind, times between
    seconds and alike, a text of ``longest`` characters, and a long snapshot."""
    turned = {"b": "2", "a": "1"}
    both = [Stat("llmk_c_total", "counter", 9.0, turned), Stat("llmk_c_total", "counter", 4.0, {"a": "1"})]
    one = [
        *(_snapshot(at, [Stat("llmk_text", "gauge", at, {"text": "x" * longest})]) for at in (-2, -1)),
        *(usual_snapshot(step) for step in (0, 1, 1, 7, 3, 4)),
        _snapshot(5, [Stat("llmk_c_total", "counter", 5.0, {"a": "1", "b": "2"})]),
        _snapshot(6, []),
        _snapshot(7, both),
        _snapshot(7.0125, reversed(both)),
        _snapshot(
            7.025, [Stat("llmk_c_total", "counter", 2.0, turned), Stat("llmk_c_total", "counter", 6.5, {"a": "1"})]
        ),
        _snapshot(
            7.05, [Stat("llmk_c_total", "counter", 2.25, turned), Stat("llmk_c_total", "counter", 7.0, {"a": "1"})]
        ),
        _snapshot(
            8, [Stat("llmk_odd", "gauge", value, {"at": str(value)}) for value in (math.nan, math.inf, -math.inf, 0.5)]
        ),
        _snapshot(8.5, [Stat(f"llmk_odd_{at}", "gauge", value, _MODEL) for at, value in enumerate(_NUMBERS)]),
        _snapshot(
            8.75, [Stat(name, "gauge", 1.0, {label: "x"}) for name in _NAMES for label in ("A1", "_", "value", "le")]
        ),
        *(_snapshot(9, [Stat("llmk_text", "gauge", 1.0, {"text": text, "to": "end"})]) for text in _TEXTS),
        _snapshot(10, [Stat(f"llmk_long_{number}", "gauge", 1.0 * number, {**_MODEL}) for number in range(200)]),
    ]
    yield [*one, *(usual_snapshot(step) for step in range(11, 20))]
    yield [usual_snapshot(step) for step in range(5)]


def held() -> set[str]:
    """This process's threads, open files and sockets."""
    threads = {f"the thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    return threads | set(_open_files())


def _open_files() -> Iterator[str]:
    folder = Path("/dev/fd")
    for number in os.listdir(folder) if folder.exists() else ():
        try:
            yield f"{os.readlink(folder / number)} (file descriptor {number})"
        except OSError:  # the descriptor of the listing itself, or a system without /proc
            continue


def _snapshot(step: float, stats: Any) -> StatsSnapshot:
    return StatsSnapshot(_START + 10.0 * step, tuple(stats))


def _usual(step: int) -> Iterator[Stat]:
    """Every stat has label objects of its own, as in a server."""
    steps = max(step, 0)
    for name, value in (("waiting", step % 7), ("running", step % 5)):
        yield Stat(f"llmk_num_requests_{name}", "gauge", float(value), {**_MODEL})
    yield Stat("llmk_generation_tokens_total", "counter", 1000.5 * steps, {**_MODEL})
    for limit in ("0.1", "1.0", "+Inf"):
        yield Stat("llmk_e2e_request_latency_seconds_bucket", "counter", 3.0 * steps, {**_MODEL, "le": limit})
    for name, each in (("count", 3.0), ("sum", 0.7)):
        yield Stat(f"llmk_e2e_request_latency_seconds_{name}", "counter", each * steps, {**_MODEL})
