"""Counts which realistic mistakes the conformance kit finds, in wheels that were written from the documentation alone.

    python tools/planted.py tests/third_party/orchard --json planted.json         # goes on where it stopped
    python tools/planted.py tests/third_party/orchard --kind policy --again

``mistakes.toml`` in the wheel has them by kind: what is wrong, the module, the text ``old``, and ``new`` in its place.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mutants import Mutant
from mutation_runs import Ready, Warm
from mutation_subjects import KINDS_OF, Subject, subjects

Mistake = dict[str, str]
"""What is wrong, the module (or file), the text ``old``, and ``new`` in its place."""

DECLARED = ("op_contract", "checkpoint_format")
"""Kinds that are checked as a whole wheel is: what they name is not all of what they are checked by."""
PLATFORMS = {
    "llmk-orchard": "grove",
    "llmk-harbor": "numa",
    "llmk-estuary": "tern",
    "llmk-delta": "delta",
    "llmk-lagoon": "lagoon",
}
"""Platforms of wheels, on which their plugins of that kind are tried."""


def main() -> int:
    """Makes one mistake after the other."""
    arguments = _arguments()
    kept = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    with tempfile.TemporaryDirectory(prefix="llmk-planted-") as folder:
        name = _install(arguments.wheel, Path(folder) / "site")
        sys.path.insert(0, str(Path(folder) / "site"))
        sys.path.insert(0, str(arguments.wheel / "src"))
        warm = Warm(Path(folder), arguments.seed, specs=20)
        for kind, mistake, subject in _planted(arguments, name, warm.on("")):
            ready, what = warm.on(_platform(name, kind)), mistake["what"]
            before = kept.get(kind, {}).get(what)
            if before and not (arguments.again and before["outcome"] == "survived"):
                continue
            if subject is None:
                result = _checked(arguments.wheel, name, kind, mistake)
            else:
                result = ready.attempt(subject, _mutant(subject.path, mistake))
            first = before.get("first", before["outcome"]) if before else result["outcome"]
            kept.setdefault(kind, {})[what] = {**result, "first": first}
            print(f"{result['outcome']:9} {kind}: {what} [{result['case'][:90]}]", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    print(report(kept))
    if arguments.score:
        arguments.score.write_text(json.dumps(score(kept), indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path, help="the folder of its pyproject.toml and mistakes.toml")
    parser.add_argument("--kind", default="", help="mistakes of one kind")
    parser.add_argument("--seed", type=int, default=0, help="of the kit's inputs")
    parser.add_argument("--json", type=Path, help="where results are kept; what is there is not run again")
    parser.add_argument("--score", type=Path, help="where the counts are kept for the documentation")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    return parser.parse_args()


def _install(wheel: Path, site: Path) -> str:
    """Describes the distribution in ``site``, as if it were installed; returns its name."""
    project = tomllib.loads((wheel / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head + needs)
    lines = [f"{name} = {module}" for name, module in project["entry-points"]["llmk.v1"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[llmk.v1]", *lines, ""]))
    return str(project["name"])


def _planted(arguments: argparse.Namespace, name: str, ready: Ready) -> Iterator[tuple[str, Mistake, Subject | None]]:
    """The mistakes of the wheel: kind, what is wrong, and the module; ``None`` for one that registers the plugins."""
    kinds: dict[str, list[Mistake]] = tomllib.loads((arguments.wheel / "mistakes.toml").read_text())
    for kind, mistakes in kinds.items():
        if arguments.kind not in ("", kind):
            continue
        found = {subject.module: subject for subject in subjects(name, ready.specs(name, KINDS_OF.get(kind, (kind,))))}
        found = {} if kind in DECLARED else found
        for mistake in mistakes:
            yield kind, mistake, next((one for at, one in found.items() if at.endswith(f".{mistake['module']}")), None)


def _mutant(path: Path, mistake: Mistake) -> Mutant:
    source, old = path.read_bytes(), mistake["old"].encode()
    if source.count(old) != 1:
        raise SystemExit(f"{mistake['what']!r}: {mistake['old']!r} is {source.count(old)} times in {path}")
    start = source.index(old)
    line = source[:start].count(b"\n") + 1
    return Mutant("planted", line, start, start + len(old), mistake["old"], mistake["new"])


def _platform(name: str, kind: str) -> str:
    return PLATFORMS.get(name, "") if kind == "platform" else ""


def file_of(mistake: Mistake) -> str:
    """Where a mistake is: a module, or a file by its name."""
    module = mistake["module"]
    return module if "." in module else f"{module}.py"


def _checked(wheel: Path, name: str, kind: str, mistake: Mistake) -> dict[str, Any]:
    """What ``llmk plugins check`` says of a copy of the wheel that has the mistake where its plugins are registered."""
    with tempfile.TemporaryDirectory(prefix="llmk-planted-") as folder:
        copy = Path(shutil.copytree(wheel, Path(folder) / "wheel"))
        (path,) = copy.glob(f"src/*/{file_of(mistake)}")
        path.write_bytes(_mutant(path, mistake).apply(path.read_bytes()))
        _install(copy, Path(folder) / "site")
        kinds = [option for one in KINDS_OF.get(kind, (kind,)) for option in ("--kind", one)]
        on = [f"--platform={found}"] if (found := _platform(name, kind)) else []
        command = [sys.executable, "-m", "llmk", "plugins", "check", name, *kinds, *on, "-x"]
        paths = os.pathsep.join((str(Path(folder) / "site"), str(copy / "src"), os.environ.get("PYTHONPATH", "")))
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    failed = re.search(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
    case = failed[1] if failed else done.stderr.strip()
    return {"outcome": "killed" if done.returncode else "survived", "case": case}


def score(kept: dict[str, dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """By kind: how many there are, how many were found at first and are now, and those that are not. A mistake that was
    tried again keeps what came of it ``first``."""
    rows = []
    for kind, results in kept.items():
        lost = [what for what, result in results.items() if result["outcome"] == "survived"]
        first = sum(result.get("first", result["outcome"]) != "survived" for result in results.values())
        rows.append(
            {"kind": kind, "planted": len(results), "first": first, "found": len(results) - len(lost), "lost": lost}
        )
    return rows


def report(kept: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Counts by kind, and those that were not found."""
    lines = ["kind               planted  found"]
    for kind, results in kept.items():
        lost = [what for what, result in results.items() if result["outcome"] == "survived"]
        lines.append(f"{kind:18} {len(results):7}  {len(results) - len(lost):5}")
        lines += [f"    not found: {what}" for what in lost]
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
