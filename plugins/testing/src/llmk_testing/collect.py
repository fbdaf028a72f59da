"""Collects the suites of a distribution: one for the wheel itself, then one for each of its specs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from llmk.api import KernelSpec
from llmk.api.errors import describe
from llmk.api.matching import check_needs
from llmk.config import load
from llmk.kernel.registry import Registered, Registry
from llmk_testing import wheel
from llmk_testing.case import Case, Skip
from llmk_testing.imports import Imports

if TYPE_CHECKING:
    from llmk_testing.bench import Bench


@dataclass(frozen=True, slots=True)
class Suite:
    """The cases of one spec, or those of a distribution itself (``kind`` is then ``"wheel"`` or ``"bench"``)."""

    spec: str
    kind: str
    listed: Callable[[], Iterator[Case]]

    def cases(self, only: str = "") -> list[Case]:
        """The cases whose ``spec::name`` matches the pattern ``only`` somewhere. If listing raises, the result is a
        failing case."""
        found: list[Case] = []
        try:
            found += self.listed()
        except Exception as error:
            found.append(Case(self.spec, self.kind, "its cases can be listed", _raising(error)))
        return [case for case in found if re.search(only, f"{case.spec}::{case.name}")]


@dataclass(frozen=True, slots=True)
class Options:
    """Which specs to check and where: ``kinds`` of specs (empty: all), a platform's name (empty: the best one here),
    and the bench's ``thorough`` and ``seed``."""

    kinds: Sequence[str] = ()
    platform: str = ""
    thorough: bool = False
    seed: int = 0

    def includes(self, kind: str) -> bool:
        """Whether specs of a kind are checked."""
        return not self.kinds or kind in self.kinds


@dataclass(slots=True)
class Collected:
    """The suites of a distribution. Iterating over ``suites`` finds them, and fills ``platform`` and ``notes``."""

    distribution: str
    options: Options = field(default_factory=Options)
    open_bench: Callable[[Options], Bench] = field(default=lambda options: open_bench(options))
    registry: Registry = field(default_factory=lambda: Registry.discover(load().config.plugins))
    platform: str = ""
    notes: list[str] = field(default_factory=list)

    def suites(self) -> Iterator[Suite]:
        """First the suite of the wheel, which needs neither torch nor a platform; then that of each spec, on a bench
        that is opened."""
        self.notes += [
            f"{r.spec.id} is not used at startup: {reason}"
            for r, reason in self.registry.refused
            if r.plugin.distribution == self.distribution
        ]
        imports = Imports(self.distribution, self.registry)
        if self.options.includes("wheel"):
            yield Suite(self.distribution, "wheel", lambda: wheel.cases(self.distribution, imports))
        wanted = [r for r in imports.specs if r.kind != "tuned" and self.options.includes(r.kind)]
        if not wanted:
            return
        opened: list[Bench] = []
        yield Suite(self.distribution, "bench", lambda: self._opening(opened))
        for registered in wanted if opened else ():
            yield Suite(registered.spec.id, registered.kind, partial(_cases, registered, opened[0], imports))

    def _opening(self, opened: list[Bench]) -> Iterator[Case]:
        """Opens the bench; if that fails, yields a failing case."""
        try:
            opened.append(self.open_bench(self.options))
        except Exception as error:
            yield Case(self.distribution, "bench", "a platform of this machine can be set up", _raising(error))
        else:
            facts = opened[0].facts
            self.platform = f"{facts.label} ({facts.device_name})" if facts.device_name else facts.label


def open_bench(options: Options) -> Bench:
    """Opens a bench for the options. Raises the errors that an engine start would raise."""
    from llmk_testing.bench import Bench

    return Bench.open(options.platform, thorough=options.thorough, seed=options.seed)


def _cases(registered: Registered[Any], bench: Bench, imports: Imports) -> Iterator[Case]:
    """The cases of one spec; a kernel that does not support the bench's platform has one skipped case."""
    spec, kind = registered.spec, registered.kind
    missing = missing_needs(spec, bench)
    bad: list[Exception] = []
    yield Case(spec.id, kind, "what it names can be imported", lambda: _kept(bad, lambda: imports.check(spec, missing)))
    if missing:
        yield Case(spec.id, kind, f"it serves on {bench.facts.label}", lambda: _skip(missing))
        return
    from llmk_testing import suites

    for case in suites.cases(kind, spec, bench):
        yield replace(case, run=partial(_unless, bad, case.run))


def _kept(bad: list[Exception], check: Callable[[], str | None]) -> str | None:
    """Runs the check, and stores its exception."""
    try:
        return check()
    except AssertionError as error:
        bad.append(error)
        raise


def _unless(bad: list[Exception], run: Callable[[], str | None]) -> str | None:
    """Runs a case, unless the import already failed, so that it would fail in the same way."""
    return _skip("what it names can't be imported") if bad else run()


def missing_needs(spec: Any, bench: Bench) -> str:
    """The needs of a kernel that the bench does not meet, in the dtype with the fewest."""
    if not isinstance(spec, KernelSpec):
        return ""
    verdicts = [check_needs(spec.needs, bench.facts, dtype) for dtype in bench.facts.dtypes]
    least = min(verdicts, key=lambda verdict: len(verdict.reasons))
    return "; ".join(map(str, least.reasons))


def _skip(reason: str) -> str | None:
    raise Skip(reason)


def _raising(error: Exception) -> Callable[[], str | None]:
    def run() -> str | None:
        raise AssertionError(str(error) if hasattr(error, "hint") else describe(error)) from error

    return run
