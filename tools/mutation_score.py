"""Tables of what the conformance kit finds, from ``mutation_score.json``, which ``mutate.py --score`` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import ROOT, Page, table

SCORE = Path("tools/mutation_score.json")


def score(files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of results of runs, what is kept: per kind and class of mistake, how many were tried and found, and the
    survivors."""
    kinds = []
    for kept in files:
        results = [result for result in kept["results"].values() if result["outcome"] != "untried"]
        classes: dict[str, list[int]] = {}
        for result in results:
            counts = classes.setdefault(result["operator"], [0, 0])
            counts[0] += result["outcome"] != "survived"
            counts[1] += 1
        survived = sorted(f"{r['module']} {r['mutant']}" for r in results if r["outcome"] == "survived")
        found, tried = sum(count for count, _ in classes.values()), len(results)
        row = {"kind": kept["kind"], "seed": kept["seed"], "pool": kept["pool"], "tried": tried, "found": found}
        kinds.append({**row, "classes": dict(sorted(classes.items())), "survived": survived})
    return kinds


def rates() -> str:
    """One row for each kind."""
    kinds: list[dict[str, Any]] = json.loads((ROOT / SCORE).read_text())
    classes = sorted({name for row in kinds for name in row["classes"]})
    rows = []
    for row in kinds:
        cells = ["{} of {}".format(*row["classes"][name]) if name in row["classes"] else "-" for name in classes]
        rows.append(
            [f"`{row['kind']}`", f"{row['found']} of {row['tried']}", f"{row['found'] / row['tried']:.0%}", *cells]
        )
    return table(["kind", "found", "rate", *classes], rows)


def pages() -> Iterator[Page]:
    """The page of the kit."""
    yield Page("docs/plugins/conformance.md", {"mutation_score.py": rates})
