"""What was verified on which chip: the files that ``llmk verify`` wrote and people sent, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from first_party import registry
from generated import ROOT, Page, code, table

FOLDER = ROOT / "docs/verified"
HEADINGS = ("machine", "verified on", "by", "conformance", "tokens", "GEMMs, of the roofline", "demo, tokens/s", "file")


def pages() -> Iterator[Page]:
    """The page of verified chips."""
    yield Page("docs/verified.md", {"verified.py": render})


def render() -> str:
    """A row for each file, the newest of a chip first; then, by platform, the architectures that it knows and nobody
    has verified."""
    files = {file.name: json.loads(file.read_text()) for file in FOLDER.glob("*.json")}
    newest = sorted(files, key=lambda name: files[name]["date"], reverse=True)
    rows = [_row(files[name], name) for name in sorted(newest, key=lambda name: str(files[name]["platform"]))]
    verified = {record["platform"] for record in files.values() if record["verdict"] == "verified"}
    waiting = []
    for platform in registry().platforms:
        labels = dict.fromkeys(facts.label for facts in platform.spec.known)
        waiting.append((f"`{platform.spec.name}`", code(*(label for label in labels if label not in verified))))
    return "\n\n".join((table(HEADINGS, rows), table(("platform", "not yet verified"), waiting)))


def _row(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    parts, device = record["parts"], record["machine"]["device"]
    verdict = "" if record["verdict"] == "verified" else "**failed**, "
    return (
        f"`{record['platform']}`" + (f": {device}" if device else ""),
        f"{verdict}{record['date'][:10]}, {record['versions']['llmk-core']}",
        record["by"] or "-",
        _conformance(parts["conformance"]["found"]),
        _tokens(parts["tokens"]["found"]),
        _gemms(parts["timings"]),
        _demo(parts["timings"]),
        f"[{'thorough' if record['thorough'] else 'quick'}](verified/{name})",
    )


def _conformance(found: Mapping[str, Mapping[str, int]]) -> str:
    totals = {name: sum(kind[name] for kind in found.values()) for name in ("passed", "failed", "skipped")}
    return ", ".join(f"{count} {name}" for name, count in totals.items() if count or name == "passed")


def _tokens(found: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(f"{each['equal']} of {each['tokens']} in {dtype}" for dtype, each in found.items()) or "-"


def _gemms(part: Mapping[str, Any]) -> str:
    """The mean share by number of tokens; a busy machine's are marked."""
    kernels = part["found"].get("kernels", ())
    shares: dict[int, list[float]] = {}
    for kernel in kernels:
        shares.setdefault(kernel["tokens"], []).append(kernel["share"])
    few = [f"{sum(s) / len(s):.0%} at {tokens}" for tokens, s in shares.items() if tokens in (1, 16, 512)]
    busy = " (a busy machine)" if any("busy" in note for note in part["notes"]) else ""
    return (", ".join(few) or "-") + busy


def _demo(part: Mapping[str, Any]) -> str:
    speeds = part["found"].get("demo_tokens_per_second", {})
    return ", ".join(f"{number:,.0f} ({what})" for what, number in speeds.items()) or "-"
