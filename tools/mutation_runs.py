"""Runs the kit on mutants, each in a process forked from one that has a platform ready."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import stale_mutant  # noqa: F401
import torch
from mutants import Mutant
from mutation_subjects import COPY, CORE, ONCE, Subject

from llmk.api import KernelSpec
from llmk.config import load
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk_testing import suites
from llmk_testing.bench import Bench
from llmk_testing.candidate import dtypes_of
from llmk_testing.case import Case, Result
from llmk_testing.collect import missing_needs
from llmk_testing.imports import Imports

CASE = 15
"""Seconds of a processor in which a case must end; a mutant with which one doesn't never ends."""
LONGEST = 900
"""Seconds in which all must have ended."""
IMPORTING = "importing it"
"""Stands for the name of a case where a mutant can't be imported."""
ORDER = (
    re.compile("oracle|comes? back|(as they|examples) say|agrees|edges|are refused by name|what they say"),
    re.compile("refused|packed|large matrix|the example says|floating-point|near what they were|mean nothing"),
    re.compile("stored tensors represent"),
)
"""Names of the cases that run first, which find most mistakes, of those that load no model, and of those that run
next."""
_ANSWERED = "examples are answered as they say"
CHEAP = {
    "reasoning_parser": (_ANSWERED,),
    "tool_parser": (
        *(_ANSWERED, "its writer's grammar allows what it renders", "its writer's grammar refuses other calls"),
        *("calls come back without tools in the request", "what is certain comes out at once"),
    ),
}
"""By kind the cases that run for every spec that reaches a line; others, for the nearest."""


@dataclass
class Warm:
    """Platforms that are ready, by name, and where mutated files go."""

    folder: Path
    seed: int
    specs: int = 3
    """Specs that a mutant of a shared module is tried on."""
    _ready: dict[str, Ready] = field(default_factory=dict)

    def on(self, platform: str) -> Ready:
        """The one of a platform."""
        if platform not in self._ready:
            for module in suites.SUITES.values():
                importlib.import_module(f"{suites.__name__}.{module}")  # once, not in every fork
            importlib.import_module("llguidance")  # without it, cases of grammars are skipped
            importlib.import_module("transformers.models.qwen3.modeling_qwen3")
            gc.freeze()  # so that forks don't copy what is collected in vain
            self._ready[platform] = Ready(self.folder, Bench.open(platform, seed=self.seed), self.specs)
        return self._ready[platform]


@dataclass
class Ready:
    """A bench, from which mutants are forked."""

    folder: Path
    bench: Bench
    most: int
    """Specs that a mutant is tried on."""
    _good: dict[str, bool] = field(default_factory=dict)
    """Whether cases that found a mistake pass without one."""

    def specs(self, distribution: str, kinds: Sequence[str]) -> list[tuple[str, Any]]:
        """Those of a distribution that run on this platform, with their kinds."""
        found = [(r.kind, r.spec) for r in Imports(distribution, self.bench.registry).specs if r.kind in kinds]
        return [(kind, spec) for kind, spec in found if not self._missing(spec)]

    def _missing(self, spec: Any) -> bool:
        if isinstance(spec, KernelSpec) and not dtypes_of(spec, self.bench):
            return True
        return bool(missing_needs(spec, self.bench))

    def attempt(self, subject: Subject, mutant: Mutant) -> dict[str, Any]:
        """What the kit says of one mutant: ``killed``, ``survived`` or ``timed out``, and by which case."""
        chosen = subject.specs_at(mutant.line)
        path = self.folder / f"{subject.module.rpartition('.')[2]}_mutant.py"
        path.write_bytes(mutant.apply(subject.path.read_bytes()))
        while True:
            red = frozenset(name for name, good in self._good.items() if not good)
            run = functools.partial(_try, self.folder, self.bench, subject, path, chosen, self.most, leave=red)
            result = _forked(run)
            if result["outcome"] == "survived" or self._is_good(subject, chosen, result["case"]):
                return result
            if result["case"] == IMPORTING:
                raise RuntimeError(f"{subject.module} can't be imported again: {result['message']}")

    def _is_good(self, subject: Subject, chosen: Sequence[tuple[str, Any]], case: str) -> bool:
        """Whether a case, ``spec::name``, passes without a mistake, or the module can be imported."""
        if case == IMPORTING:
            case = f"{IMPORTING} {subject.module}"
        if ("::" in case or case.startswith(IMPORTING)) and case not in self._good:
            only = frozenset([case])
            result = _forked(lambda: _try(self.folder, self.bench, subject, subject.path, chosen, self.most, only=only))
            self._good[case] = result["outcome"] == "survived"
        return self._good.get(case, True)


def _forked(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a function, which runs in a fork of this process."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST + 5))
        _answer(run, read, write)
    os.close(write)
    deadline, text, ended = time.monotonic() + LONGEST, b"", False
    while not ended and select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
        more = os.read(read, 65536)
        text, ended = text + more, not more
    os.close(read)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    _, _, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    found: dict[str, Any] = {"outcome": "killed", "case": "the process died"}
    if text and ended:
        found = json.loads(text)
    elif not ended or seconds >= LONGEST - 1:
        found = {"outcome": "timed out", "case": f"after {seconds:.0f} seconds of a processor"}
    return {**found, "processor": round(seconds, 1)}


def _answer(run: Callable[[], dict[str, Any]], read: int, write: int) -> None:
    """The fork's life."""
    os.setpgid(0, 0)
    os.close(read)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        answer = run()
    except BaseException:
        answer = {"outcome": "killed", "case": IMPORTING, "message": traceback.format_exc()[-600:]}
    os.write(write, json.dumps(answer).encode())
    os.close(write)
    os._exit(0)


def _try(
    folder: Path,
    bench: Bench,
    subject: Subject,
    path: Path,
    chosen: Sequence[tuple[str, Any]],
    most: int,
    only: Container[str] = (),
    leave: Container[str] = (),
) -> dict[str, Any]:
    """Runs the suites of specs with the file at ``path`` in place of the subject's, until a case fails: of the first
    specs, ``most`` of them, all cases, of others the cheap ones; of cases ``spec::name``, ``only`` some, or all but
    those to ``leave``. ``folder`` is for the files of children."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGVTALRM, _end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE)  # for what it imports
    name = COPY if subject.distribution == CORE else subject.module
    sys.meta_path.insert(0, _Finder(name, path))
    sys.path.insert(0, _for_children(folder, name, path))
    if subject.distribution != CORE and subject.module in sys.modules:
        bench = _discovered(bench, subject.module.partition(".")[0], anew=chosen[0][0] == "platform")
        registered: Sequence[Any] = bench.registry.of(object)
        now = {(one.kind, one.spec.id): one.spec for one in registered}
        chosen = [(kind, now[kind, spec.id]) for kind, spec in chosen]
    cases: list[Case] = []
    for number, (kind, spec) in enumerate(chosen):
        if number >= most and kind not in CHEAP:
            break
        places = [getattr(spec, name, "") for name in ("implementation", "prepare", "describe", "examples")]
        for place in filter(None, places):
            load_object(place)
        made = suites.cases(kind, spec, bench)
        cases += [case for case in made if number < most or case.name in CHEAP[kind]]
    count = 0
    for case in sorted(cases, key=_late):
        name = f"{case.spec}::{case.name}"
        if name in leave or (only and name not in only):
            continue
        try:
            result = _in_time(case)
        except Endless:
            return {"outcome": "timed out", "case": name}
        count += result.outcome == "passed"
        if result.outcome == "failed":
            return {"outcome": "killed", "case": name, "message": result.message[:300]}
    return {"outcome": "survived", "case": f"{count} cases passed"}


class Endless(BaseException):
    """Raised where a case does not end."""


def _end(number: int, frame: object) -> None:
    raise Endless


def _in_time(case: Case) -> Result:
    """Runs a case. Raises Endless if it takes too long."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE)
    try:
        return Result.of(case)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _late(case: Case) -> int:
    """The place of a case in the order in which they run."""
    return next((place for place, names in enumerate(ORDER) if names.search(case.name)), len(ORDER))


def _discovered(bench: Bench, package: str, *, anew: bool) -> Bench:
    """A bench whose plugins are discovered again, without what is left of a package; ``anew``: its platform, too."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package and name not in ONCE]:
        del sys.modules[name]
    importlib.invalidate_caches()
    if not anew:
        return replace(bench, registry=Registry.discover(load().config.plugins))
    made = Bench.open(bench.facts.name, seed=bench.seed)
    torch.set_num_threads(1)
    return made


class _Finder:
    """Finds the mutated file under its module's name."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of the mutated module; ``None`` for all others."""
        return spec_from_file_location(name, self._path) if name == self._name else None


_CHILD = """
import sys
from importlib.util import spec_from_file_location


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, {path!r}) if name == {name!r} else None


sys.meta_path.insert(0, Finder)
sys.path.append({tools!r})
import stale_mutant
"""


def _for_children(folder: Path, name: str, path: Path) -> str:
    """A folder for Python's path, with which children that a suite starts find the mutated file, too."""
    place = folder / f"children-{os.getpid()}"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_CHILD.format(name=name, path=str(path), tools=str(Path(__file__).parent)))
    return str(place)
