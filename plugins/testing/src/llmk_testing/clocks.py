"""Clocks that move as a case wants, for code whose answers must not depend on time."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

_COUNTERS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_BROKEN_DOWN = ("localtime", "gmtime")


@contextmanager
def moving_clocks(package: str, seconds: float) -> Iterator[None]:
    """Within, each look at a clock is so many ``seconds`` after the one before.

    It holds of the modules ``time`` and ``datetime``, and of what modules of ``package`` have imported from them.
    """
    now = time.time()

    def later() -> float:
        nonlocal now
        now += seconds
        return now

    fakes = _fakes(later)
    places: list[tuple[Any, str, Any]] = [(module, name, fake) for (module, name), fake in fakes.items()]
    by_original = {id(getattr(module, name)): fake for (module, name), fake in fakes.items()}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            held = [(key, by_original[id(value)]) for key, value in vars(module).items() if id(value) in by_original]
            places += [(module, key, fake) for key, fake in held]
    patches = [patch.object(*place) for place in places]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def _fakes(later: Callable[[], float]) -> dict[tuple[Any, str], Any]:
    """What stands in the place of each function and class that reads a clock, by its module and name."""

    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(later(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(later(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    class Day(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(later())

    fakes: dict[tuple[Any, str], Any] = {(datetime, "datetime"): Moved, (datetime, "date"): Day}
    for name in _COUNTERS:
        fakes[time, name] = later
        fakes[time, f"{name}_ns"] = lambda: int(later() * 1e9)
    for name in _BROKEN_DOWN:
        real = getattr(time, name)
        fakes[time, name] = lambda at=None, real=real: real(later() if at is None else at)
    return fakes
