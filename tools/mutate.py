"""Scores the conformance kit: mutates plugins, one mistake at a time, and counts the mistakes that the kit alone finds.

    python tools/mutate.py --kind policy --sample 100 --json policy.json
    python tools/mutate.py --kind policy --sample 100 --json policy.json        # goes on where it stopped
    python tools/mutate.py --kind policy --list | head
    python tools/mutate.py --report policy.json parser.json --score tools/mutation_score.json

Survivors that change nothing are listed in ``mutation_argued.toml``, each with the argument why: they are no mistakes.

A mutant runs in a process forked from one that has the kit, torch and a platform ready. It ends at the first failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from mutants import Mutant, mutants
from mutation_runs import Warm
from mutation_score import judged, score
from mutation_subjects import DISTRIBUTIONS, KINDS_OF, PLATFORMS, Subject, subjects, template_of, write_templates


@dataclass(frozen=True, slots=True)
class Planned:
    """A mutant of a subject."""

    subject: Subject
    mutant: Mutant

    @property
    def key(self) -> str:
        """The same in every run on the same source."""
        mutant = self.mutant
        return f"{self.subject.module}:{mutant.line}:{mutant.start}:{mutant.operator}:{mutant.after}"


def main() -> int:
    """Runs, lists or reports."""
    arguments = _arguments()
    if arguments.report:
        files = _joined(json.loads(path.read_text()) for path in arguments.report)
        print(report(files))
        if arguments.score:
            arguments.score.write_text(json.dumps(score(files), indent=1, ensure_ascii=False) + "\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="llmk-mutants-") as folder:
        site = Path(folder) / "site"
        write_templates(site)
        sys.path[:0] = [str(site), *map(str, arguments.site)]
        run(arguments, Path(folder))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=[*DISTRIBUTIONS])
    parser.add_argument("--sample", type=int, default=100, help="mutants to try (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the kit's inputs")
    parser.add_argument("--only", default="", help="modules whose names have this in them")
    parser.add_argument("--operator", default="", help="mutants of one class")
    parser.add_argument("--site", type=Path, action="append", default=[], help="a folder with further distributions")
    parser.add_argument("--distribution", action="append", default=[], help="further distributions to mutate")
    parser.add_argument("--json", type=Path, help="where results are kept; what is there is not run again")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--specs", type=int, default=3, help="specs that a mutant is tried on (%(default)s)")
    parser.add_argument(
        "--part", type=_part, default=(0, 1), metavar="I/N", help="every N-th of the sample from the I-th"
    )
    parser.add_argument("--list", action="store_true", help="list the sample, run none")
    parser.add_argument("--report", type=Path, nargs="+", help="tables of results, in place of a run")
    parser.add_argument("--score", type=Path, help="with --report: where the counts are kept for the documentation")
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    """``2/8`` as the second of eight: parts of one sample run in parallel, each with a table of its own."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part like 2/8")
    return int(number) - 1, int(count)


def run(arguments: argparse.Namespace, folder: Path) -> None:
    """Tries the sample and keeps results after each."""
    warm = Warm(folder, arguments.seed, arguments.specs)
    pool = list(_pool(arguments, warm))
    random.Random(arguments.seed).shuffle(pool)
    good = (planned for planned in pool if planned.mutant.compiles(planned.subject.path.read_bytes()))
    first, step = arguments.part
    chosen = list(islice(good, arguments.sample))[first::step]
    kept = _read(arguments, len(pool))
    for number, planned in enumerate(chosen):
        if arguments.list:
            print(planned.subject.module, planned.mutant)
        elif planned.key not in kept["results"] or (
            arguments.again and kept["results"][planned.key]["outcome"] == "survived"
        ):
            result = _attempt(warm, planned)
            kept["results"][planned.key] = result
            print(f"{number + 1}/{len(chosen)}", _line(result), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    if not arguments.list:
        print(report([kept]))


def _attempt(warm: Warm, planned: Planned) -> dict[str, Any]:
    start = time.monotonic()
    subject, mutant = planned.subject, planned.mutant
    result = warm.on(PLATFORMS.get(subject.distribution, "")).attempt(subject, mutant)
    seconds = round(time.monotonic() - start, 1)
    return result | {
        "module": subject.module,
        "operator": mutant.operator,
        "mutant": str(mutant),
        "code": subject.path.read_text().splitlines()[mutant.line - 1].strip(),
        "seconds": seconds,
    }


def _line(result: Mapping[str, Any]) -> str:
    found = f"{result['outcome']:9} {result['seconds']:5} s {result['module']} {result['mutant']}"
    return f"{found} [{result['case'][:80]}]"


def _joined(files: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tables of one kind and seed as one."""
    joined: dict[tuple[str, int], dict[str, Any]] = {}
    for kept in files:
        whole = joined.setdefault((kept["kind"], kept["seed"]), kept)
        whole["results"] |= kept["results"]
    return list(joined.values())


def _read(arguments: argparse.Namespace, pool: int) -> dict[str, Any]:
    kept: dict[str, Any] = {"kind": arguments.kind, "seed": arguments.seed, "results": {}}
    if arguments.json and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())
    return kept | {"pool": pool}


def _pool(arguments: argparse.Namespace, warm: Warm) -> Iterator[Planned]:
    """Every mutant of a kind whose specs run here."""
    kinds = KINDS_OF.get(arguments.kind, (arguments.kind,))
    for distribution in (*DISTRIBUTIONS[arguments.kind], *template_of(arguments.kind), *arguments.distribution):
        if distribution in PLATFORMS and not _is_installed(distribution):
            print(
                f"{distribution} is left out: it is not installed; --site names a folder that has it", file=sys.stderr
            )
            continue
        bench = warm.on(PLATFORMS.get(distribution, ""))
        for subject in subjects(distribution, bench.specs(distribution, kinds)):
            if arguments.only in subject.module:
                lines = {line for first, last in subject.reached() for line in range(first, last + 1)}
                for mutant in mutants(subject.path.read_bytes()):
                    if arguments.operator in mutant.operator and mutant.line in lines:
                        yield Planned(subject, mutant)


def _is_installed(distribution: str) -> bool:
    return any(True for _ in metadata.distributions(name=distribution))


def report(files: Sequence[dict[str, Any]]) -> str:
    """Counts by kind and by class of mistake, and the survivors."""
    lines = ["kind               tried  found  argued  survived  rate"]
    for kept in files:
        results = judged(kept)
        outcomes = Counter(result["outcome"] for result in results)
        found, argued = outcomes["killed"] + outcomes["timed out"], outcomes["argued"]
        survived, rate = outcomes["survived"], found / max(1, found + outcomes["survived"])
        tried = found + argued + survived
        lines.append(f"{kept['kind']:18} {tried:5}  {found:5}  {argued:6}  {survived:8}  {rate:.1%}")
        by: Counter[tuple[str, bool]] = Counter(
            (r["operator"], r["outcome"] != "survived") for r in results if r["outcome"] not in ("untried", "argued")
        )
        for operator in sorted({operator for operator, _ in by}):
            good, all_ = by[operator, True], by[operator, True] + by[operator, False]
            lines.append(f"    {operator:18} {good} of {all_}")
        lines += [f"    survived: {r['module']} {r['mutant']}" for r in results if r["outcome"] == "survived"]
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
