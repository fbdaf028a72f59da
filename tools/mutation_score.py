"""Tables of what the conformance kit finds, from ``mutation_score.json``, which ``mutate.py --score`` writes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from generated import ROOT, Page, table

SCORE = Path("tools/mutation_score.json")
PLANTED = {
    "orchard": Path("tools/planted_orchard_score.json"),
    "meadow": Path("tools/planted_meadow_score.json"),
    "harbor": Path("tools/planted_harbor_score.json"),
    "estuary": Path("tools/planted_estuary_score.json"),
    "fjord": Path("tools/planted_fjord_score.json"),
    "delta": Path("tools/planted_delta_score.json"),
    "lagoon": Path("tools/planted_lagoon_score.json"),
}
"""By the stranger's wheel."""
ARGUED = Path("tools/mutation_argued.toml")


@cache
def arguments() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Why a mutant changes nothing, by its module, the line of code, and the mutant without the line's number."""
    argued: Sequence[dict[str, Any]] = tomllib.loads((ROOT / ARGUED).read_text())["argued"]
    return {(one["module"], one["code"], mutant): one for one in argued for mutant in one["mutants"]}


def judged(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of a kind, where survivors that change nothing are ``argued``."""
    found = []
    for result in kept["results"].values():
        key = (result["module"], result.get("code", ""), result["mutant"].partition(", ")[2])
        argued = arguments().get(key) if result["outcome"] == "survived" else None
        holds = argued and kept["kind"] in argued.get("kinds", (kept["kind"],))
        found.append({**result, "outcome": "argued"} if holds else dict(result))
    return found


def score(files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of results of runs, what is kept: per kind and class of mistake, how many were tried and found, and the
    survivors."""
    kinds = []
    for kept in files:
        results = [result for result in judged(kept) if result["outcome"] != "untried"]
        argued = sum(result["outcome"] == "argued" for result in results)
        results = [result for result in results if result["outcome"] != "argued"]
        classes: dict[str, list[int]] = {}
        for result in results:
            counts = classes.setdefault(result["operator"], [0, 0])
            counts[0] += result["outcome"] != "survived"
            counts[1] += 1
        survived = sorted(f"{r['module']} {r['mutant']}" for r in results if r["outcome"] == "survived")
        found, tried = sum(count for count, _ in classes.values()), len(results) + argued
        row = {"kind": kept["kind"], "seed": kept["seed"], "pool": kept["pool"], "tried": tried, "argued": argued}
        kinds.append({**row, "found": found, "classes": dict(sorted(classes.items())), "survived": survived})
    return kinds


def rates() -> str:
    """One row for each kind."""
    kinds: list[dict[str, Any]] = json.loads((ROOT / SCORE).read_text())
    classes = sorted({name for row in kinds for name in row["classes"]})
    rows = []
    for row in kinds:
        cells = ["{} of {}".format(*row["classes"][name]) if name in row["classes"] else "-" for name in classes]
        mistakes = row["tried"] - row["argued"]
        rate = f"{row['found'] / mistakes:.1%}"
        rows.append([f"`{row['kind']}`", str(row["tried"]), str(row["argued"]), str(row["found"]), rate, *cells])
    return table(["kind", "tried", "change nothing", "found", "rate of mistakes", *classes], rows)


def planted() -> str:
    """One row for each kind of the strangers' wheels."""
    rows = []
    for wheel, path in PLANTED.items():
        for row in json.loads((ROOT / path).read_text()):
            counts = [f"{row['first']} of {row['planted']}", f"{row['found']} of {row['planted']}"]
            rows.append([f"`{row['kind']}`", wheel, *counts, "; ".join(row["lost"]) or "-"])
    return table(["kind", "wheel", "found at first", "found now", "not found"], rows)


def pages() -> Iterator[Page]:
    """The page of the kit."""
    yield Page("docs/plugins/conformance.md", {"mutation_score.py": rates, "planted.py": planted})
