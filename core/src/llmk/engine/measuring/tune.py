"""Measures every kernel that could serve a site, at several token counts, for the resolver to choose by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import importlib_metadata as metadata
import torch
from packaging.requirements import Requirement

from llmk.api import Choice, ConfigError, KernelSpec, Piece, Plan, Platform
from llmk.api.errors import describe
from llmk.api.sharding import sharded
from llmk.config.measurements import Measured, Measurements, key_of, save_measurements
from llmk.engine.device.graphs import obstacles
from llmk.engine.measuring.benchmark_inputs import BenchmarkInput, BenchmarkInputs
from llmk.kernel.loader import load_object
from llmk.nn.build import Build
from llmk.planning.candidates import able
from llmk.planning.ranking import END
from llmk.planning.resolver import resolve
from llmk.reference.compare import relative_error, tensors_of, tolerance

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

T = TypeVar("T")
Calls = tuple[Callable[[], Any], int]

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Token counts at which kernels are measured; a count stands for those down to the next lower one."""
_ORDER = (("attention", "linear", "moe"), ("op",))
"""Kinds of sites, those that ops depend on first."""
_SLOW = 250_000.0
"""Microseconds of a call after which a kernel is not tried with more tokens."""
_ROUND, _ROUNDS, _CALLS = 0.005, 5, 16
"""Seconds of a round of calls, of which there are several; and least calls in a graph."""


@dataclass(slots=True)
class Tuner:
    """Measures on this machine what ``boot``'s plan chose and what else could serve.

    ``say`` takes human-readable lines; ``only`` names the kinds, sites and ops to measure (none: all); ``wrong``
    collects the ids of kernels that are not right; ``progress`` takes how many sites are measured, of how many.
    """

    boot: Boot
    say: Callable[[str], None]
    only: frozenset[str] = frozenset()
    progress: Callable[[int, int], None] = lambda done, total: None
    platform: Platform = field(init=False)
    wrong: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.platform = self.boot.load("platform")(self.boot.plan.platform)
        self.platform.device.setup(0, self.boot.settings.config.platform.threads)

    @torch.inference_mode()
    def run(self) -> Path | None:
        """Measures every site with several candidates, those that ops depend on first, and saves each as it is done.
        Returns where they are; ``None`` where no site has a choice."""
        path, seen = None, set[str]()
        self._check_only()
        known = len({key for kinds in _ORDER for key, _, _ in self._sites(kinds)})
        for kinds in _ORDER:
            for key, choice, ids in self._sites(kinds):
                if key in seen:
                    continue
                self.progress(len(seen), max(known, len(seen) + 1))
                if times := self._measure(choice, ids):
                    path = self._save(Measurements({key: Measured(date.today().isoformat(), times)}), ids)
                seen.add(key)
        self.progress(len(seen), len(seen))
        return path

    def _check_only(self) -> None:
        """Raises ConfigError for a word that names nothing of the plan, which would have no effect."""
        names = {kind for kinds in _ORDER for kind in kinds}
        names |= {name for c in self._resolve().all_choices() for name in (c.kind, c.site, c.op) if name}
        for word in sorted(self.only - names):
            near = get_close_matches(word, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the plan has {', '.join(sorted(names))}"
            raise ConfigError(f"--only names {word!r}, which is no kind, site or op of this model's plan", hint=hint)

    def _sites(self, kinds: tuple[str, ...]) -> Iterator[tuple[str, Choice, list[str]]]:
        """The sites of these kinds that are to be measured, by what is measured so far, and their candidates."""
        for choice in self._resolve().all_choices():
            ids = [spec.id for spec in able(self.boot.registry, choice)]
            asked = not self.only or not self.only.isdisjoint((choice.kind, choice.site, choice.op))
            if choice.kind in kinds and choice.query is not None and len(ids) > 1 and asked:
                yield key_of(choice.query), choice, ids

    def _measure(self, choice: Choice, ids: list[str]) -> dict[int, dict[str, float]]:
        """Microseconds of a call by token count and id. The first of ``ids`` says what is right."""
        limits = self.boot.settings.config.scheduler
        wide = getattr(choice.query, "out_features", 0) == self.boot.facts.vocab_size
        most = limits.max_num_seqs if wide else limits.max_num_batched_tokens
        entrants = [entrant for id in ids if (entrant := self._attempt(choice, id, self._enter, choice, id))]
        if not entrants:
            self.say(f"{choice.kind} {choice.site}: not measured, so its tiers decide")
        found: dict[int, dict[str, float]] = {}
        for tokens in (count for count in COUNTS if count <= most):
            expected: list[Any] = []
            ready: dict[str, Calls] = {}
            for entrant in [e for e in entrants if e.piece(tokens).id == e.id]:
                calls = self._attempt(choice, entrant.id, self._ready, entrant, tokens, expected)
                if calls is None:
                    entrants.remove(entrant)
                # Steps that decode are recorded as a whole, which is worth more than any one kernel.
                elif tokens > min(limits.max_num_seqs, self._most_recorded) or entrant.is_recorded(tokens):
                    ready[entrant.id] = calls
            if ready:
                found[tokens] = self._race(ready)
                entrants = [e for e in entrants if found[tokens].get(e.id, 0) < _SLOW]
                listed = ", ".join(f"{time:.2f} us by {id}" for id, time in found[tokens].items())
                self.say(f"{choice.kind} {choice.site}, {tokens} tokens: {listed}")
        times = {n: {id: t for id, t in column.items() if id not in self.wrong} for n, column in found.items()}
        return {count: column for count, column in times.items() if column}

    def _attempt(self, choice: Choice, id: str, do: Callable[..., T], *arguments: Any) -> T | None:
        """What ``do`` returns; where it raises, ``None``, and ``say`` reports it."""
        try:
            return do(*arguments)
        except Exception as error:
            if isinstance(error, WrongResult):
                self.wrong.add(id)
            self.say(f"{choice.kind} {choice.site}: {id} is left out: {describe(error)}")
            return None

    def _enter(self, choice: Choice, id: str) -> _Entrant | None:
        """Binds the kernel ``id`` for a site as a model would; ``None`` where no inputs for it are known."""
        plan = self._resolve(choice, id)
        pinned = next(c for c in plan.all_choices() if (c.kind, c.site) == (choice.kind, choice.site))
        # Parts of ops are bound like sites of the model.
        plan = replace(plan, choices=(pinned, *(c for c in plan.choices if c.site != pinned.site)))
        device = self.platform.device.torch_device(0)
        dtype, checkpoint = getattr(torch, plan.dtype), self.boot.checkpoint
        build = Build(plan, dtype=dtype, device=device, load_object=load_object, checkpoint=checkpoint)
        trial = BenchmarkInputs(build, sharded(self.boot.facts, plan.tensor), self.boot.registry).of(pinned)
        return _Entrant(id, build, pinned, trial) if trial else None

    def _ready(self, entrant: _Entrant, tokens: int, expected: list[Any]) -> Calls:
        """What makes a number of calls, in a graph where that is possible, and the number. Raises WrongResult for a
        result that is not ``expected``, which the first kernel fills in."""
        entrant.build.select(tokens)
        run, sets = entrant.trial.at(tokens), entrant.trial.sets
        actual = run(0)
        if not expected:
            expected += [one.clone() for one in tensors_of(actual)]  # what an op changes in place, it will change again
        _check(list(tensors_of(actual)), expected, entrant.build.plan.dtype, tokens)
        calls = sets * -(-_CALLS // sets) if self._clock(lambda: run(0)) < _SLOW / 1e6 else 1

        def all_calls() -> None:
            for i in range(calls):
                run(i % sets)

        graphs, recorded = self.platform.graphs, tokens <= self._most_recorded and entrant.is_recorded(tokens)
        return graphs.capture(all_calls) if graphs and recorded else all_calls, calls

    @property
    def _most_recorded(self) -> int:
        """Tokens of steps up to which any are recorded."""
        graphs = self.platform.graphs
        return 0 if graphs is None else graphs.on_demand or END

    def _race(self, ready: Mapping[str, Calls]) -> dict[str, float]:
        """Microseconds of a call of each: the least of some rounds, since what else the machine does only adds to it,
        in turn, so that it meets all alike."""
        times = {id: max(1, int(_ROUND / self._clock(replay))) for id, (replay, _) in ready.items()}
        rounds = [{id: self._clock(ready[id][0], times[id]) for id in ready} for _ in range(_ROUNDS)]
        return {id: round(1e6 * min(r[id] for r in rounds) / times[id] / ready[id][1], 3) for id in ready}

    def _clock(self, run: Callable[[], Any], times: int = 1) -> float:
        self.platform.device.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            run()
        self.platform.device.synchronize()
        return time.perf_counter() - started

    def _resolve(self, choice: Choice | None = None, id: str = "") -> Plan:
        """The plan by what is measured so far, with ``id`` pinned for the site of ``choice``."""
        boot, config = self.boot, self.boot.settings.config
        if choice is not None:
            rules = getattr(config.select, choice.kind).model_copy(update={"use": {choice.site: id}})
            config = config.model_copy(update={"select": config.select.model_copy(update={choice.kind: rules})})
        known = (boot.checkpoint, boot.facts, boot.platform_facts, boot.plan.quantization)
        return resolve(boot.registry, config, *known, platform_id=boot.plan.platform_id)

    def _save(self, measured: Measurements, ids: list[str]) -> Path:
        boot, versions = self.boot, {"torch": metadata.version("torch")}
        for kernel in (kernel for kernel in boot.registry.of(KernelSpec) if kernel.spec.id in ids):
            needed = [Requirement(package).name for package in kernel.spec.needs.packages]
            versions |= {kernel.plugin.distribution: kernel.plugin.version, **{n: metadata.version(n) for n in needed}}
        return save_measurements(boot.settings.config.platform.measurements, boot.platform_facts, measured, versions)


class WrongResult(Exception):
    """A kernel's result differs from the reference's by more than rounding."""


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A kernel, bound for one site by a plan that pins it there."""

    id: str
    build: Build
    choice: Choice
    trial: BenchmarkInput

    def piece(self, tokens: int) -> Piece:
        """What serves so many tokens: the kernel, or another where it is not offered."""
        return self.choice.piece(tokens)

    def is_recorded(self, tokens: int) -> bool:
        """Whether steps with it can be recorded in a graph."""
        return not any(obstacles(self.choice, tokens, tokens))


def _check(actual: Any, expected: Any, dtype: str, tokens: int) -> None:
    """Compares tensors, or tuples of them."""
    error = float(relative_error(actual, expected))
    if not error <= tolerance(dtype):
        raise WrongResult(f"at {tokens} tokens it differs from the reference by {error:.1e} (2-norm, relative)")
