"""Figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
ROWS = {
    "ttft_ms": "first token",
    "tpot_ms": "per token",
    "itl_ms": "between events",
    "e2e_ms": "whole answer",
}


def render(name: str, figures: dict[str, Any], busy: float, limit: float) -> str:
    """One load: rates, latencies, and what makes them doubtful."""
    lines = [f"{name}: {figures['requests']} requests, {figures['failed']} failed"]
    if "seconds" not in figures:
        return lines[0]
    lines[0] += f", {figures['seconds']:.2f} s"
    lines.append(
        f"  {figures['requests_per_s']:.2f} requests/s, {figures['output_tokens_per_s']:.1f} output tokens/s, "
        f"{figures['total_tokens_per_s']:.1f} tokens/s in all"
    )
    lines.append(f"  a request: {figures['prompt_tokens']:g} tokens in, {figures['output_tokens']:g} out")
    if "goodput_per_s" in figures:
        wanted = ", ".join(f"{key} {value:g} ms" for key, value in figures["targets_ms"].items())
        lines.append(f"  goodput {figures['goodput_per_s']:.2f} requests/s ({figures['good']} within {wanted})")
    lines += [f"  {line}" for line in _table(figures)]
    if "long_ttft_ms" in figures:
        lines.append(f"  the long prompt among them: first token after {figures['long_ttft_ms'][0]:g} ms")
    return "\n".join((*lines, *(f"  note: {note}" for note in _notes(figures, busy, limit))))


def _table(figures: dict[str, Any]) -> list[str]:
    lines = [f"{'ms':16}" + "".join(f"{column:>10}" for column in COLUMNS)]
    for key, label in ROWS.items():
        if values := figures.get(key):
            lines.append(f"{label:16}" + "".join(f"{values[column]:10.2f}" for column in COLUMNS))
    return lines


def _notes(figures: dict[str, Any], busy: float, limit: float) -> Sequence[str]:
    notes = []
    if figures["other_length"]:
        notes.append(f"{figures['other_length']} answers have another length than was requested")
    if not figures["prompt_tokens"]:
        notes.append("the server reports no usage: an event counts as a token")
    if figures["late"]:
        notes.append(f"{figures['late']} requests were sent more than 10 ms late; times count from when they were due")
    if busy > limit:
        notes.append(f"a client took {busy:.0%} of a processor, which may show in the figures: raise --processes")
    return notes
