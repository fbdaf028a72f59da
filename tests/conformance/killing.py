"""Runs a suite on a provider, good or broken."""

from __future__ import annotations

from typing import Any

from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases


def is_drawn(name: str) -> bool:
    """Whether a case of a good one is run, by the name of its spec and its own. ``conftest`` puts a sample here."""
    return True


def results(kind: str, spec: Any, bench: Bench) -> list[Result]:
    """What comes of every case."""
    return [Result.of(case) for case in cases(kind, spec, bench)]


def failed(kind: str, spec: Any, bench: Bench) -> dict[str, str]:
    """Messages of the cases that fail, by name."""
    return {result.name: result.message for result in results(kind, spec, bench) if result.outcome == "failed"}


def check_good(kind: str, spec: Any, bench: Bench) -> None:
    """Every case passes that is drawn, or the first where none is; and none is skipped."""
    every = [*cases(kind, spec, bench)]
    chosen = [case for case in every if is_drawn(f"{spec.id} {case.name}")] or every[:1]
    found = [result for result in map(Result.of, chosen) if result.outcome != "passed"]
    assert not found, found


def check_killed(kind: str, spec: Any, bench: Bench, case: str) -> None:
    """A case whose name has ``case`` in it fails."""
    chosen = [one for one in cases(kind, spec, bench) if case in one.name]
    assert chosen, f"{case!r} is no case"
    found = [Result.of(one) for one in chosen]
    assert any(result.outcome == "failed" for result in found), f"no case like {case!r} fails: {found}"
