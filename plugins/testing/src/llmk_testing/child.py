"""The process in which a distribution's cases run, so that one that crashes or hangs takes no report with it.

Run as ``python -m llmk_testing.child`` with a :class:`Job` in JSON, it writes what happens as lines of JSON.
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
    """What to try. ``done`` are suites, as (kind, spec), that are not to be tried again; ``only`` is a pattern of
    ``spec::name``; ``list_only`` tells to run nothing."""

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
    """Does the job. What cases print goes to the standard error, the lines of JSON to what was the standard output."""
    job = Job.parse(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(event: str, **data: Any) -> None:
        print(json.dumps({"event": event, **data}), file=out, flush=True)

    collected = Collected(job.distribution, job.options)
    for suite in collected.suites():
        if (suite.kind, suite.spec) not in job.done:
            tell("suite", spec=suite.spec, kind=suite.kind)
            _try(suite, job, tell)
    tell("end", platform=collected.platform, notes=collected.notes)
    os._exit(0)  # whatever threads cases have left behind


def _try(suite: Suite, job: Job, tell: Any) -> None:
    cases = suite.cases(job.only)
    tell("cases", names=[case.name for case in cases])
    for case in cases if not job.list_only else ():
        tell("begin", name=case.name)
        tell("result", **asdict(Result.of(case)))


if __name__ == "__main__":
    main()
