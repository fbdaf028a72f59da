"""The report card: results of the cases of distributions, as text, as JSON, and as Markdown for a README."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import importlib_metadata as metadata

from llmk.planning.tables import render_rows
from llmk_testing.case import Outcome, Result

OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "skipped")
HEADER = ("spec", "kind", *OUTCOMES, "seconds")
_LINES = 20
"""Most lines of a failure's message in the text report."""
RED, GREEN, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"


@dataclass(slots=True)
class Card:
    """Results of distributions (name to version) on one platform. ``notes`` are further hints for the author."""

    distributions: dict[str, str]
    thorough: bool = False
    seed: int = 0
    platform: str = ""
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def failed(self) -> bool:
        """Whether any case failed."""
        return any(result.outcome == "failed" for result in self.results)

    def render(self, *, color: bool = False) -> str:
        """For a terminal: counts by spec, failures with their messages, reasons of skips, and a verdict."""
        shown = [self._title(), "", render_rows(HEADER, [list(map(str, row)) for row in self._rows()])]
        for result in self._having("failed"):
            lines = result.message.splitlines()
            if len(lines) > _LINES:
                lines[_LINES:] = [f"... and {len(lines) - _LINES} more lines; --json has all"]
            shown += ["", f"FAILED {result.spec}::{result.name}", *(f"    {line}" for line in lines)]
        if skips := list(self._skips()):
            shown += ["", *skips]
        shown += [f"note: {note}" for note in self.notes]
        verdict = f"{'red' if self.failed else 'green'}: {self._summary()}"
        return "\n".join([*shown, "", f"{RED if self.failed else GREEN}{verdict}{PLAIN}" if color else verdict])

    def markdown(self) -> str:
        """For a README: versions, counts by spec, and what failed or was skipped."""
        rows = [HEADER, ["---"] * len(HEADER), *self._rows()]
        table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
        failed = [f"- **failed**: `{r.spec}::{r.name}`: {_first_line(r.message)}" for r in self._having("failed")]
        skips = [f"- {line}" for line in self._skips()]
        parts = [f"Checked with `llmk plugins check`: {self._title()}, {self.date[:10]}.", table]
        return (
            "\n\n".join([*parts, *(["\n".join([*failed, *skips])] if failed or skips else []), self._summary()]) + "\n"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data: versions, platform, date, and every case."""
        return {
            "distributions": self.distributions,
            "versions": _versions(),
            "platform": self.platform,
            "date": self.date,
            "thorough": self.thorough,
            "seed": self.seed,
            "counts": self._counts(),
            "notes": self.notes,
            "results": [asdict(result) for result in self.results],
        }

    def _title(self) -> str:
        wheels = ", ".join(f"{name} {version}" for name, version in self.distributions.items())
        versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
        return f"{wheels} on {self.platform or 'no platform'}, {versions}, seed {self.seed}"

    def _rows(self) -> Iterator[list[object]]:
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            groups.setdefault((result.spec, result.kind), []).append(result)
        for (spec, kind), results in groups.items():
            counts = Counter(result.outcome for result in results)
            seconds = sum(result.seconds for result in results)
            yield [spec, kind, *(counts[outcome] for outcome in OUTCOMES), f"{seconds:.1f}"]

    def _having(self, outcome: str) -> Iterator[Result]:
        return (result for result in self.results if result.outcome == outcome)

    def _skips(self) -> Iterator[str]:
        counts = Counter((result.spec, result.message) for result in self._having("skipped"))
        for (spec, reason), count in counts.items():
            yield f"skipped {count} of {spec}: {reason}"

    def _counts(self) -> dict[str, int]:
        found = Counter(result.outcome for result in self.results)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    def _summary(self) -> str:
        return ", ".join(f"{count} {outcome}" for outcome, count in self._counts().items())


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("llmk-core", "torch")} | {"python": platform.python_version()}


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]
