"""The process in which a distribution's cases run, so that a crash or hang does not lose the report.

Run as ``python -m llmk_testing.child`` with a :class:`Job` in JSON, it writes events as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from llmk_testing.case import Result
from llmk_testing.collect import Collected, Options, Suite


@dataclass(frozen=True, slots=True)
class Job:
    """What to run. ``done`` are suites, as (kind, spec), that are not run again; ``only`` is a pattern of
    ``spec::name``; with ``list_only``, cases are listed but not run."""

    distribution: str
    options: Options
    only: str = ""
    list_only: bool = False
    done: Sequence[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Job:
        """From JSON, as :meth:`dump` writes it."""
        data = json.loads(text)
        options, done = Options(**data.pop("options")), [(kind, spec) for kind, spec in data.pop("done")]
        return cls(**data, options=options, done=done)

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def main() -> None:
    """Runs the job. Output of cases goes to standard error, the lines of JSON to the original standard output."""
    job = Job.parse(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(event: str, **data: Any) -> None:
        print(json.dumps({"event": event, **data}), file=out, flush=True)

    collected = Collected(job.distribution, job.options)
    for suite in collected.suites():
        if (suite.kind, suite.spec) not in job.done:
            emit("suite", spec=suite.spec, kind=suite.kind)
            _run_suite(suite, job, emit)
    emit("end", platform=collected.platform, notes=collected.notes)
    os._exit(0)  # even if cases left threads running


def _run_suite(suite: Suite, job: Job, emit: Any) -> None:
    cases = suite.cases(job.only)
    emit("cases", names=[case.name for case in cases])
    for case in cases if not job.list_only else ():
        emit("start", name=case.name)
        emit("result", **asdict(Result.of(case)))


if __name__ == "__main__":
    main()
