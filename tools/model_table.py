"""The table of models: what serves each kind of causal language model of transformers, and what was compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generated import Page, table

RESULTS = Path(__file__).with_name("model_parity.json")
TRANSFORMERS = "models.transformers"


def pages() -> Iterator[Page]:
    """The page of models."""
    yield Page("docs/models.md", {"model_table.py": render})


def render() -> str:
    """How many there are of each sort, and a table of each sort."""
    kept = json.loads(RESULTS.read_text())
    kinds: Mapping[str, Mapping[str, Any]] = kept["kinds"]
    equal = {kind: each for kind, each in kinds.items() if "compared" in each and "failed" not in each}
    refused = {kind: each for kind, each in kinds.items() if "refused" in each}
    others = {kind: each for kind, each in kinds.items() if kind not in equal and kind not in refused}
    types = {kind: each for kind, each in equal.items() if "," not in kind}
    native = sum(each["served"] != TRANSFORMERS for each in types.values())
    lines = [
        f"With transformers {kept['transformers']}: {len(types)} architectures are served and equal, {native} of them"
        f" natively; {len(refused)} are refused; {len(others)} were not compared.",
        "### Equal",
        table(("architecture", "type", "served by", "largest distance"), map(_equal, equal.items())),
        "### Refused",
        table(("architecture", "type", "why"), (_row(kind, each, "refused") for kind, each in refused.items())),
    ]
    if others:
        why = "No tiny checkpoint of these types could be made, or compared in time, so nothing is known of them:"
        lines += ["### Not compared", f"{why} {', '.join(f'`{kind}`' for kind in others)}."]
    return "\n\n".join(lines)


def _equal(item: tuple[str, Mapping[str, Any]]) -> tuple[str, ...]:
    kind, each = item
    by = "transformers' modules" if each["served"] == TRANSFORMERS else f"`{each['served']}`"
    return f"`{each['architecture']}`", f"`{kind}`", by, f"{max(each['compared'].values()):.0e}"


def _row(kind: str, each: Mapping[str, Any], why: str) -> tuple[str, ...]:
    reason = str(each[why]).rpartition("through transformers' modules: ")[2]
    architecture = each.get("architecture")
    return f"`{architecture}`" if architecture else "–", f"`{kind}`", reason
