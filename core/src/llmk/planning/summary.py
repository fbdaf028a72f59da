"""A plan on one screen: which kernels serve where there was something to choose, and one line for all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llmk.api import Choice, Piece, Plan
from llmk.planning.ranking import END, ONLY
from llmk.planning.report import could_serve, not_built, with_gaps
from llmk.planning.tables import render_rows

_MOST_ROWS, _MOST_SITES, _MOST_WARNINGS = 10, 5, 4
_MEASURED = "measured"


@dataclass(slots=True)
class _Row:
    """What one kernel serves; of ops, which are many and small, all kernels of a plugin for one reason."""

    kernel: str
    sites: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    whys: list[str] = field(default_factory=list)


def render_kernels(plan: Plan, model: str, width: int = 0) -> list[str]:
    """A table of the kernels that were chosen among several, a line for all others, and a line for what could be
    faster. ``model``: the arguments of commands that name the model."""
    rows = _rows(plan)
    shown, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    cells = [(row.kernel, _few(row.sites), ", ".join(sorted(row.tokens)), "; ".join(row.whys)) for row in shown]
    lines = [render_rows(("kernel", "serves", "tokens", "why"), cells, width)] if cells else []
    if rest:
        lines.append(f"and {len(rest)} more: llmk explain{model}")
    if others := [choice for choice in plan.all_choices() if not _is_chosen(choice)]:
        lines.append(f"{len(others)} other ops: reference, or the only candidate (llmk explain{model})")
    return lines


def render_advice(plan: Plan, model: str) -> list[str]:
    """Warnings, and how many kernels could serve besides."""
    lines = [f"warning: {each}" for each in plan.warnings[:_MOST_WARNINGS]]
    if more := len(plan.warnings) - _MOST_WARNINGS:
        lines += [f"and {more} more warnings: llmk explain{model}"] if more > 0 else []
    counts = (
        (len(could_serve(plan)), "could serve, if you choose them"),
        (len(with_gaps(plan)), "left out for a gap"),
        (len(not_built(plan)), "not built"),
    )
    if said := ", ".join(f"{count} {what}" for count, what in counts if count):
        lines.append(f"more kernels: {said} (llmk explain{model})")
    return lines


def render_measured(plan: Plan, model: str) -> str:
    """At how many sites a measurement decided, or how to measure."""
    chosen = [choice for choice in plan.all_choices() if _is_chosen(choice)]
    measured = [choice for choice in chosen if any(piece.why.startswith(_MEASURED) for piece in choice.pieces)]
    if not measured:
        return f"nothing; llmk tune{model} measures which kernels are fastest here"
    dates = sorted({piece.why[-10:] for choice in measured for piece in choice.pieces if piece.why[-10:][:2] == "20"})
    when = f", {dates[-1]}" if dates else ""
    return f"{len(measured)} of {len(chosen)} sites that have a choice{when}"


def _rows(plan: Plan) -> list[_Row]:
    found: dict[str, _Row] = {}
    for choice in filter(_is_chosen, plan.all_choices()):
        for piece in choice.pieces:
            kernel = f"{piece.id.partition('.')[0]}.*" if choice.kind == "op" else piece.id
            row = found.setdefault(f"{kernel} {_why(piece)}" if choice.kind == "op" else kernel, _Row(kernel))
            for name, names in ((_name(plan, choice), row.sites), (_why(piece), row.whys)):
                if name not in names:
                    names.append(name)
            row.tokens.add(_tokens(choice, piece))
    for row in found.values():
        if len(row.tokens) > 1:
            row.tokens = {"several"}
    return list(found.values())


def _is_chosen(choice: Choice) -> bool:
    """Whether something else could have served, or something faster than the reference does."""
    return any(piece.why != ONLY and (piece.tier != "reference" or _is_asked(piece)) for piece in _tiered(choice))


def _tiered(choice: Choice) -> Iterator[Piece]:
    return (piece for piece in choice.pieces if piece.tier)


def _is_asked(piece: Piece) -> bool:
    return not piece.why.startswith(("tier", "best score"))


def _name(plan: Plan, choice: Choice) -> str:
    return choice.site if any(choice is top for top in plan.choices) else choice.op


def _tokens(choice: Choice, piece: Piece) -> str:
    return "" if len(choice.pieces) == 1 else f"{piece.start}-{piece.stop - 1 if piece.stop < END else ''}"


def _why(piece: Piece) -> str:
    tier = f"tier {piece.tier}"
    return piece.tier if piece.why in (tier, f"best score in {tier}") else piece.why.removesuffix(" over the traffic")


def _few(sites: Sequence[str]) -> str:
    more = len(sites) - _MOST_SITES
    return ", ".join(sites[:_MOST_SITES]) + (f" and {more} more" if more > 0 else "")
