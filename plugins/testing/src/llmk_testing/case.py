"""The elements of the conformance kit: a case is one check of one spec; its result is a line of the report card."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from llmk.api.errors import describe

Outcome = Literal["passed", "failed", "skipped"]


class Skip(Exception):
    """Raised by a case that can't run here; the message says what is missing. Never raised for something that a spec
    declares but does not do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One check of one spec.

    ``run`` raises ``AssertionError`` with the expected and the actual result; any other exception is a failure of the
    plugin's code. It may return a remark for the report ("relative error 2.1e-4").
    """

    spec: str
    """The spec's id."""
    kind: str
    name: str
    """What is checked, as a sentence that is true of a good spec: ``"rows don't depend on the batch"``."""
    run: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case."""

    spec: str
    kind: str
    name: str
    outcome: Outcome
    seconds: float
    message: str = ""

    @classmethod
    def of(cls, case: Case) -> Result:
        """Runs ``case``. Only exceptions that are not an ``Exception`` (such as ``KeyboardInterrupt``) are raised."""
        start = time.perf_counter()
        outcome, message = _run(case.run)
        return cls(case.spec, case.kind, case.name, outcome, time.perf_counter() - start, message)


def _run(check: Callable[[], Any]) -> tuple[Outcome, str]:
    try:
        return "passed", str(check() or "")
    except Skip as reason:
        return "skipped", str(reason)
    except AssertionError as error:
        return "failed", str(error) or "an assertion without a message failed"
    except Exception as error:
        return "failed", f"raised {describe(error)}"
