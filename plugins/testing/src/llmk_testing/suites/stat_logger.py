"""The suite of stat loggers: they are created as in the server, get snapshots of every kind, and are closed.

``StatLoggerSpec.examples`` names a sequence of sections, each a mapping of what a user may write into
``[plugin.NAME]``; without them, a logger is tested with its defaults. Relative paths refer to a temporary folder. What
a logger writes or sends is compared where they are a :class:`~llmk_testing.stat_examples.StatExamples`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from llmk.api import StatLoggerContext, StatLoggerSpec, StatsSnapshot
from llmk.kernel.loader import load_object
from llmk.serve.metrics.stat_loggers import LAST_SECONDS
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.sections import check_unknown, options_of
from llmk_testing.stat_examples import StatExamples
from llmk_testing.stats import (
    MODELS,
    LoggerThread,
    held,
    many_series,
    new_series,
    odd_snapshots,
    restarted,
    usual_snapshot,
)
from llmk_testing.suites.stat_outages import Outages, free_port, sending

SNAPSHOTS, LOOP_SECONDS = 600, 3.0
"""Snapshots before the first memory measurement, and between the first and the second; fewer if the logger is slow."""
BLOCKS = 3
"""So many times in a row that memory must grow to be a leak."""
SERIES, OF_SERIES = 1000, 32
"""Counters of a snapshot that were in none before, and snapshots before the first measurement and after it."""
GROWTH = 8 << 10
"""Allowed growth in bytes between the measurements: less than one number per snapshot."""
LONG, SENDABLE = 70_000, 500
"""Characters of a text that is longer than files of a few KiB, and of one that fits into a datagram."""
GRACE = 1.0
"""Seconds after :meth:`~llmk.api.StatLogger.close` within which threads must end."""

Check = Callable[["Make"], str | None]
Make = Callable[[], LoggerThread]


def cases(spec: StatLoggerSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one logger."""

    def case(name: str, check: Check) -> Case:
        return Case(spec.id, "stat_logger", name, partial(_run, spec, bench, check))

    yield Case(
        spec.id, "stat_logger", "an option that there isn't is refused by name", partial(_check_options, spec, bench)
    )
    for what, snapshots in odd_snapshots().items():
        yield case(f"it takes {what}", partial(check_taken, snapshots))
    yield case("snapshots stay as they are", check_unchanged)
    yield case("a snapshot takes time in proportion to its stats", check_linear)
    yield case("its memory does not grow with the number of snapshots", check_memory)
    yield case("its memory does not grow with counters that are gone", check_series)
    yield case("the last snapshot and its end take no longer than a server waits", check_last)
    yield case("it can be closed before the first snapshot, and twice", check_closing)
    yield case("nothing that it opened or started outlives it", check_gone)
    yield Case(spec.id, "stat_logger", "its files are those of its oracle", partial(_check_files, spec, bench))
    yield Case(
        spec.id,
        "stat_logger",
        "it goes on where what it sends to is away, refuses, never answers, or comes back",
        partial(_check_outages, spec, bench),
    )


def check_taken(snapshots: Sequence[StatsSnapshot], make: Make) -> None:
    """Neither these snapshots nor the ones after them may raise."""
    with make() as logger:
        for snapshot in (*snapshots, usual_snapshot(2)):
            logger.record(snapshot)


def check_unchanged(make: Make) -> None:
    """Other loggers get the same snapshot."""
    with make() as logger:
        given = usual_snapshot(1)
        before = deepcopy(given)
        logger.record(given)
        differ = [f"{old} became {new}" for old, new in zip(before.stats, given.stats, strict=True) if old != new]
        assert not differ, f"record changed the snapshot: {differ[0]}"


def check_linear(make: Make) -> None:
    """Four times as many must take about four times the lines of Python. The first snapshots pay for what is made
    once."""
    lines = []
    with make() as logger:
        logger.record(usual_snapshot(1))
        for count in (300, 1200):
            logger.record(many_series(count))
            lines.append(logger.counted(many_series(count)))
    assert lines[1] <= 6 * lines[0] + 2000, f"{lines[0]} lines of code for 300 stats become {lines[1]} for 1200"


def check_memory(make: Make) -> str:
    """Values grow; names and labels stay the same. What is allocated once, such as a compiled expression, may be so at
    any time: what leaks grows in each block of snapshots."""
    with _traced(), make() as logger:
        recorded = _record(logger, 0)
        for _ in range(BLOCKS):
            before = _traced_bytes()
            more = _record(logger, recorded)
            recorded += more
            grown = _settled(before)
            if grown <= GROWTH:
                return f"{max(grown, 0)} bytes in {more} snapshots"
    raise AssertionError(
        f"it grew by {grown} bytes in the last {more} of {recorded} snapshots, and by more than the {GROWTH} that are "
        "allowed in each block before"
    )


def check_series(make: Make) -> str:
    """Some may be remembered, as they may come back, and not all."""
    with _traced(), make() as logger:
        for step in range(OF_SERIES):
            logger.record(new_series(step, SERIES))
        before = _traced_bytes()
        for step in range(OF_SERIES, 2 * OF_SERIES):
            logger.record(new_series(step, SERIES))
        grown, more = _traced_bytes() - before, SERIES * OF_SERIES
    assert grown <= more, f"it grew by {grown} bytes with {more} counters that came and went, after as many others"
    return f"{max(grown, 0)} bytes with {more} counters"


def check_last(make: Make) -> str:
    """A server does not wait longer, so the last numbers would be lost."""
    with make() as logger:
        logger.record(usual_snapshot(1))
        start = time.monotonic()
        logger.record(usual_snapshot(2))
        logger.close()
        spent = time.monotonic() - start
    assert spent <= LAST_SECONDS, f"record and close took {spent:.1f} s, at most {LAST_SECONDS:g} s are allowed"
    return f"{1000 * spent:.0f} ms"


def check_closing(make: Make) -> None:
    """As after a start that failed in another component."""
    with make() as unused:
        unused.close()
        unused.close()
    with make() as used:
        used.record(usual_snapshot(1))
        used.close()
        used.close()


def check_gone(make: Make) -> None:
    """No thread, socket or file may remain, so that another logger can be created with the same options."""
    with make() as logger:
        logger.record(usual_snapshot(1))  # resources that a process opens only once are opened here
    before = held()
    with make() as logger:
        for step in range(3):
            logger.record(usual_snapshot(step))
    deadline = time.monotonic() + GRACE
    while (left := held() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"{GRACE:g} s after close there still is {', '.join(sorted(left))}"


def _check_files(spec: StatLoggerSpec, bench: Bench) -> str:
    """After each snapshot, as a reader may look at any time; of two loggers, as after a restart."""
    examples = load_object(spec.examples) if spec.examples else None
    if not isinstance(examples, StatExamples):
        raise Skip("what it writes or sends is compared with nothing: its examples are no StatExamples with an oracle")
    kind: Callable[[StatLoggerContext], Any] = load_object(spec.implementation)
    compared = 0
    for number, section in enumerate(examples.sections):
        with _folder() as folder, _received(examples, folder) as more:
            options, runs = options_of(spec.id, bench, {**section, **more}), list[list[StatsSnapshot]]()
            context = StatLoggerContext(MODELS[number % len(MODELS)], 10.0, options)
            for snapshots in restarted(LONG if examples.receiver is None else SENDABLE):
                runs.append([])
                with LoggerThread(kind, context) as logger:
                    for snapshot in snapshots:
                        runs[-1].append(snapshot)
                        logger.record(snapshot)
                        _check_same(folder, examples.oracle(context, runs), sum(map(len, runs)))
                        compared += 1
                _check_same(folder, examples.oracle(context, runs), sum(map(len, runs)))
    return f"{compared} snapshots"


def _check_outages(spec: StatLoggerSpec, bench: Bench) -> None:
    """A server of metrics may start later than this one, and be restarted."""
    examples, receiver = sending(load_object(spec.examples) if spec.examples else None)
    kind: Callable[[StatLoggerContext], Any] = load_object(spec.implementation)
    for section in examples.sections:
        with _folder() as folder, _environment(examples):
            outages = Outages(examples, receiver, folder, free_port())
            options = options_of(spec.id, bench, {**section, **outages.options()})
            outages.run(kind, StatLoggerContext(MODELS[0], 10.0, options))


def _check_same(folder: Path, right: Mapping[str, bytes], number: int) -> None:
    """What is sent may take a moment to arrive."""
    deadline = time.monotonic() + GRACE
    while (found := _files(folder)) != right and time.monotonic() < deadline:
        time.sleep(0.01)
    names = sorted(found.keys() ^ right.keys())
    assert not names, f"after {number} snapshots, there are {sorted(found)}, expected {sorted(right)}"
    for name, data in right.items():
        assert found[name] == data, f"after {number} snapshots, {name} {_difference(found[name], data)}"


def _difference(found: bytes, wanted: bytes) -> str:
    """Where the first byte differs, with what is before it."""
    pairs = enumerate(zip(found, wanted, strict=False))
    at = next((n for n, (one, other) in pairs if one != other), min(len(found), len(wanted)))
    shown = slice(max(at - 60, 0), at + 60)
    return f"has at byte {at} {found[shown]!r}, expected {wanted[shown]!r}"


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _check_options(spec: StatLoggerSpec, bench: Bench) -> None:
    """Validates with the plugin's schema (``llmk_config_schema``), as at startup."""
    with _folder():
        check_unknown(spec.id, bench)


def _run(spec: StatLoggerSpec, bench: Bench, check: Check) -> str | None:
    """Runs a check with each of the spec's examples; returns the last one's remark."""
    examples = load_object(spec.examples) if spec.examples else ({},)
    sections = examples.sections if isinstance(examples, StatExamples) else examples
    good = isinstance(sections, Sequence) and sections and all(isinstance(one, Mapping) for one in sections)
    assert good, f"{spec.examples} is {sections!r}, expected a sequence of sections, each a mapping"
    kind: Callable[[StatLoggerContext], Any] = load_object(spec.implementation)
    remark = None
    for section in sections:
        with _folder() as folder, _received(examples, folder) as more:
            options = options_of(spec.id, bench, {**section, **more})
            remark = check(lambda: LoggerThread(kind, StatLoggerContext("org/model", 10.0, options)))  # noqa: B023
    return remark


@contextlib.contextmanager
def _received(examples: Any, folder: Path) -> Iterator[Mapping[str, Any]]:
    """The options of what receives what the logger sends, in the environment that it needs."""
    receiver = examples.receiver if isinstance(examples, StatExamples) else None
    with (
        _environment(examples),
        receiver(folder, free_port(), "takes") if receiver else contextlib.nullcontext({}) as more,
    ):
        yield more


def _environment(examples: Any) -> contextlib.AbstractContextManager[Any]:
    """Has the variables of the examples."""
    return patch.dict(os.environ, examples.environment if isinstance(examples, StatExamples) else {})


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A temporary working directory."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


@contextlib.contextmanager
def _traced() -> Iterator[None]:
    """Counts Python's allocations."""
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        yield
    finally:
        if not tracing:
            tracemalloc.stop()


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _settled(before: int) -> int:
    """Growth in bytes, once what other threads still hold for a moment is gone."""
    grown, deadline = _traced_bytes() - before, time.monotonic() + GRACE
    while grown > GROWTH and time.monotonic() < deadline:
        time.sleep(0.05)
        grown = _traced_bytes() - before
    return grown


def _record(logger: LoggerThread, first: int) -> int:
    """Records snapshots from step ``first``; returns how many."""
    deadline = time.monotonic() + LOOP_SECONDS
    for recorded in range(SNAPSHOTS):
        if time.monotonic() > deadline:
            return recorded
        logger.record(usual_snapshot(first + recorded))
    return SNAPSHOTS
