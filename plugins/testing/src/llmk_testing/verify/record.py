"""The record of a verification: what ran where, and the result. As text, and as the JSON that is sent back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from llmk.planning.tables import render_rows

FORMAT = 1
"""Of the JSON: raised where a field changes its meaning."""


@dataclass(slots=True)
class Part:
    """One part of a verification: ``problems`` say why it failed, ``notes`` what was left out, and why; ``found`` is
    what it measured."""

    found: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """A verification. It names no host and no user, but for what ``by`` says."""

    platform: str
    """``name/arch``."""
    machine: dict[str, Any]
    versions: dict[str, str]
    thorough: bool = False
    seed: int = 0
    by: str = ""
    parts: dict[str, Part] = field(default_factory=dict)
    seconds: float = 0.0
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def failed(self) -> bool:
        """Whether any part failed."""
        return any(part.problems for part in self.parts.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"format": FORMAT, "verdict": "failed" if self.failed else "verified", **asdict(self)}

    def render(self) -> str:
        """For a terminal: a line for each measurement, what was left out, what failed, and a verdict."""
        lines = [f"{self.platform}: {self.machine['device'] or 'unnamed'}", ""]
        lines.append(render_rows(("part", "what", "found"), [list(row) for row in self._rows()]))
        for name, part in self.parts.items():
            lines += [f"note: {name}: {note}" for note in part.notes]
            lines += [f"FAILED {name}: {problem}" for problem in part.problems]
        verdict = "failed" if self.failed else "verified"
        return "\n".join([*lines, "", f"{verdict} in {self.seconds:.0f} s"])

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        shown = {"device": _device, "conformance": _conformance, "tokens": _tokens, "timings": _timings}
        for name, part in self.parts.items():
            for what, found in shown[name](part.found):
                yield name, what, found


def _device(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, size in found.items():
        yield name, f"{size / (1 << 30):.1f} GiB"


def _conformance(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, counts in found.items():
        yield kind, ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _tokens(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for dtype, each in found.items():
        equal = f"{each['equal']} of {each['tokens']} are the reference's first choice"
        yield dtype, f"{equal}; logits at most {each['worst']:.2g} below it"


def _timings(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, number in found.get("roofline", {}).items():
        yield f"machine: {name}", f"{number:,.2f}"
    for kernel in found.get("kernels", ()):
        name = f"{kernel['out']} x {kernel['in']}, {kernel['tokens']} tokens"
        yield name, f"{kernel['us']:,.1f} us by {kernel['id']}, {kernel['share']:.0%} of the roofline"
    for name, number in found.get("demo_tokens_per_second", {}).items():
        yield f"demo model: {name}", f"{number:,.0f} tokens/s"
