"""A kernel spec under test: which of a suite's queries it serves on this machine, and whether its declarations are
true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import torch

from llmk.api import FIRST_FIELDS, KernelSpec, OpQuery, PlatformFacts, Query, Verdict
from llmk.api.matching import check_needs, facts_to_know, match, neutral_values
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.purity import check_pure
from llmk_testing.settings import leaving_settings

Q = TypeVar("Q", bound=Query)

Check = Callable[..., str | None]
"""``check(candidate, asked)``, which raises like a case."""

_SHOWN = 6
"""Most reasons in the report if no query is served."""
_EVERYWHERE = 3
"""The first queries of a suite, and the first of each weight format, are tried in every dtype, all others in one."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[Q]):
    """A query of a suite, with a short label."""

    label: str
    query: Q

    @property
    def dtype(self) -> torch.dtype:
        """The engine's dtype."""
        found: torch.dtype = getattr(torch, self.query.dtype)
        return found


class Candidate(Generic[Q]):
    """A spec under test, with the queries of its suite.

    Args:
        wanted: by label, a function that makes the query from the given fields of :class:`~llmk.api.Query`.
        advice: the hint for the author of a kernel that serves none of them.
    """

    def __init__(
        self,
        spec: KernelSpec,
        bench: Bench,
        wanted: Mapping[str, Callable[..., Q]],
        advice: str = "",
    ) -> None:
        self.spec, self.bench = spec, bench
        self._wanted, self._advice = wanted, advice
        self._facts = facts_to_know(spec.op, (kernel.spec for kernel in bench.registry.kernels("op")))

    def serves(self, query: Q) -> Verdict:
        """Whether the resolver would let the spec serve ``query``."""
        return match(self.spec, query, self._facts)

    def case(self, name: str, run: Callable[[], str | None]) -> Case:
        """A case of the spec; it runs in inference mode, as kernels always do."""

        @torch.inference_mode()
        def watched() -> str | None:
            with leaving_settings():
                return run()

        return Case(self.spec.id, self.spec.kind, name, watched)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that both the platform and the spec support."""
        return dtypes_of(self.spec, self.bench)

    @cached_property
    def queries(self) -> list[list[Asked[Q]]]:
        """All queries: for each label, one per dtype."""
        return [
            [
                Asked(f"{label}, {dtype}", make(platform=self.bench.facts, site=self.spec.kind, dtype=dtype))
                for dtype in self.dtypes
            ]
            for label, make in self._wanted.items()
        ]

    @cached_property
    def served(self) -> list[Asked[Q]]:
        """The queries that the spec claims to serve: all dtypes for the first labels, and for the others one dtype and
        float32, in which small errors show."""
        found: list[Asked[Q]] = []
        formats: list[str] = []
        for in_dtypes in self.queries:
            able = [asked for asked in in_dtypes if self.serves(asked.query)]
            stored_as = [getattr(asked.query, "weight_format", "") for asked in able[:1]]
            everywhere = len(formats) < _EVERYWHERE or any(name not in formats for name in stored_as)
            precise = [asked for asked in able[1:] if asked.dtype == torch.float32]
            found += able if self.bench.thorough or everywhere else [*able[:1], *precise]
            formats += stored_as
        return [*found, *self._alone(found)]

    def _alone(self, found: Sequence[Asked[Q]]) -> Iterator[Asked[Q]]:
        """The first query that is served with one more field: each that the spec declares to know and no query has that
        is served, as the suite's have others, too, which the spec may refuse."""
        if not found:
            return
        for name in sorted(self._declared):
            having = [asked.query for in_dtypes in self.queries for asked in in_dtypes if _has(asked.query, name)]
            if name in neutral_values(type(found[0].query)) and not any(_has(asked.query, name) for asked in found):
                for value in dict.fromkeys(getattr(query, name) for query in having):
                    query = replace(found[0].query, **{name: value})
                    if self.serves(query):
                        yield Asked(f"{name} = {value}, {query.dtype}", query)
                        break

    @property
    def _declared(self) -> Collection[str]:
        """The fields that the spec declares to know; without those of the first release where it knows them all."""
        return self.spec.knows - FIRST_FIELDS if self.spec.knows >= FIRST_FIELDS else self.spec.knows

    @cached_property
    def deterministic(self) -> list[Asked[Q]]:
        """Those of the first queries that it also serves with ``deterministic`` required."""
        invariant = [Asked(asked.label, replace(asked.query, deterministic=True)) for asked in self.served]
        return [asked for asked in invariant if self.serves(asked.query)][:_EVERYWHERE]

    def load(self, location: str) -> Any:
        """Imports the object at ``location``."""
        return load_object(location, plugin=self.spec.id)

    def checks(
        self,
        agrees: Check,
        contracts: Mapping[str, Check],
        recorded: Check,
        deterministic: Check,
        some: Sequence[Asked[Q]] | None = None,
    ) -> Iterator[Case]:
        """The cases that all suites share: its declarations are true; it ``agrees`` with the oracle on all queries that
        it serves; it keeps the ``contracts`` (by name) on ``some`` of them, by default the first two; it can be
        ``recorded`` (graph capture) and is ``deterministic`` if it declares so."""
        yield from self.honesty()
        yield from self.each("agrees with the reference", agrees, self.served)
        more = {"can be recorded and replayed": recorded} if self.spec.capture != "none" else {}
        for name, check in {**contracts, **more}.items():
            yield from self.each(name, check, self.served[:2] if some is None else some)
        if self.spec.deterministic:
            yield from self.each("rows don't depend on the batch", deterministic, self.deterministic)

    def each(self, name: str, check: Check, queries: Sequence[Asked[Q]]) -> Iterator[Case]:
        """A case for each of ``queries``."""
        for asked in queries:
            yield self.case(f"{name}: {asked.label}", partial(check, self, asked))

    def honesty(self) -> Iterator[Case]:
        """Cases: it serves some of the suite's queries, declares honestly what it knows, and ``supports`` answers every
        query correctly. If this machine does not meet its needs, the first is skipped with the reasons."""
        yield self.case("serves some of the suite's queries", self._serves)
        yield self.case("knows the fields that it declares", self._knows)
        yield self.case("supports is pure and answers every query, without torch", self._answers)

    def _serves(self) -> str:
        dtype = next(iter(self.dtypes), "")
        needs = check_needs(self.spec.needs, self.bench.facts, dtype)
        if not needs:
            raise Skip(f"not for this machine: {_reasons(needs)}")
        assert self.served, self._refusals()
        return f"{len(self.served)} queries of {len(self._wanted)} kinds"

    def _knows(self) -> str:
        """A field that it declares is one that queries have, and it serves a query that has it."""
        queries = [asked.query for in_dtypes in self.queries for asked in in_dtypes]
        queries += [asked.query for asked in self.served]
        having = {name: [query for query in queries if _has(query, name)] for name in sorted(self._declared)}
        known = {*FIRST_FIELDS, *(name for query in queries for name in _names(query))}
        for name in having.keys() - known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise AssertionError(f"it declares to know {name!r}, which no query of its kind has; {hint}")
        for name, asked in having.items():
            idle = asked and check_needs(self.spec.needs, self.bench.facts, asked[0].dtype)
            if idle and not any(self.serves(query) for query in asked):
                raise AssertionError(
                    f"it declares to know {name}, and serves none of {len(asked)} queries that have it"
                )
        return ", ".join(having) or "those of the first release"

    def _refusals(self) -> str:
        """Why it serves none of the queries: the most frequent reasons."""
        first: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for asked in (asked for in_dtypes in self.queries for asked in in_dtypes[:1]):
            for reason in map(str, self.serves(asked.query).reasons):
                first.setdefault(reason, asked.label)
                counts[reason] += 1
        lines = [f"{count} times: {text}; first for: {first[text]}" for text, count in counts.most_common(_SHOWN)]
        if len(counts) > _SHOWN:
            lines.append(f"and {len(counts) - _SHOWN} other reasons")
        head = f"supports refuses all {len(self._wanted)} kinds of queries of this suite:"
        return "\n  ".join([head, *lines, *([self._advice] if self._advice else [])])

    def _answers(self) -> None:
        """Also for an unknown platform and an unknown dtype; of an op, at sites of larger ops, whose facts their parts
        get, and which need not have those of the op."""
        elsewhere = PlatformFacts(name="elsewhere", arch="unheard-of", device_type="cpu")
        asked: dict[str, Any] = {"site": self.spec.kind}
        odd = list(self._at_other_sites())
        check_pure(self.spec.supports, odd)
        check_pure(
            self.spec.supports,
            (
                make(platform=platform, dtype=dtype, **asked)
                for make in self._wanted.values()
                for platform in (self.bench.facts, elsewhere)
                for dtype in (*(self.dtypes or ("float32",)), "float64")
            ),
        )

    def _at_other_sites(self) -> Iterator[Query]:
        """The queries of an op without each of its facts, without any, and with others."""
        dtype = (*self.dtypes, "float32")[0]
        for make in self._wanted.values():
            query = make(platform=self.bench.facts, dtype=dtype, site=self.spec.kind)
            if not isinstance(query, OpQuery):
                return
            yield replace(query, facts={})
            yield replace(query, facts={**query.facts, "unheard_of": 7})
            for name in query.facts:
                yield replace(query, facts={key: value for key, value in query.facts.items() if key != name})


def served_by(spec: KernelSpec, bench: Bench) -> Callable[[Callable[..., Query]], bool]:
    """Whether a spec serves the query that a function makes, in any dtype of this machine."""
    fits = [dtype for dtype in dtypes_of(spec, bench) if check_needs(spec.needs, bench.facts, dtype)]

    def serves(make: Callable[..., Query]) -> bool:
        return any(match(spec, make(dtype=dtype, platform=bench.facts, site=spec.kind)) for dtype in fits)

    return serves


def _names(query: Query) -> list[str]:
    """Optional fields, and the facts of an op."""
    return [*neutral_values(type(query)), *getattr(query, "facts", ())]


def _has(query: Query, name: str) -> bool:
    """Whether a field is at another value than its default, or a fact is there."""
    neutral = neutral_values(type(query))
    if name in neutral:
        return bool(getattr(query, name) != neutral[name])
    return name in getattr(query, "facts", ())


def dtypes_of(spec: KernelSpec, bench: Bench) -> tuple[str, ...]:
    """The dtypes that both the platform and the spec support."""
    declared, has = spec.needs.dtypes, bench.facts.dtypes
    return tuple(dtype for dtype in has if not declared or dtype in declared)


def _reasons(verdict: Verdict) -> str:
    return "; ".join(map(str, verdict.reasons))


def agreeing(errors: Sequence[float]) -> str:
    """The remark of a case that compares numbers."""
    return f"relative error {max(errors, default=0.0):.1e}"
