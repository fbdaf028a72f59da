"""The resolver: turns a model's facts into queries, and chooses kernels for them, with reasons, as a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import importlib_metadata as metadata
from packaging.utils import canonicalize_name

from llmk.api.checkpoint import Checkpoint
from llmk.api.errors import SelectionError
from llmk.api.facts import ModelFacts, OpFacts
from llmk.api.matching import facts_to_know, match
from llmk.api.plan import Choice, Piece, Plan, QuantizationChoice, Rejection
from llmk.api.platform import PlatformFacts
from llmk.api.query import OpQuery, Query, make_query, site_queries
from llmk.api.sharding import sharded
from llmk.api.specs import GIVEN_PARTS, ModelSpec, QuantizationSpec, Tier, TunedConfigs
from llmk.api.verdict import Reason
from llmk.config.measurements import Measurements, load_measurements
from llmk.config.traffic import Traffic, load_traffic
from llmk.kernel.discovery import CORE
from llmk.kernel.first_party import how_to_install
from llmk.kernel.registry import Registry
from llmk.planning.choices.executors import check_loaded, kernels_of, whole_choice
from llmk.planning.choices.models import TREE_MODEL
from llmk.planning.choices.policies import choose_policy, choose_router
from llmk.planning.choices.speculation import choose_speculator
from llmk.planning.formats import variants
from llmk.planning.ranking import Candidate, IncompatibleParts, Ranking, TokenRange
from llmk.planning.selection import unknown_id

if TYPE_CHECKING:
    from llmk.config import Config

ENGINE_OPS = (
    *("update_rows", "build_step", "compute_slot_mapping", "append_tokens", "accept_drafts", "embedding"),
    *("apply_penalties", "apply_bias", "match_suffixes", "allow_tokens", "apply_mask", "sample", "logprobs"),
)
"""Ops that the engine uses for every model; each is a site with the op's name unless the model's facts have one."""

_NUMBER = re.compile(r"\.\d+$")

Refusals = dict[str, tuple[Reason, ...]]


class NoCandidate(SelectionError):
    """No installed kernel supports a site."""


def resolve(
    registry: Registry,
    config: Config,
    checkpoint: Checkpoint,
    facts: ModelFacts,
    platform_facts: PlatformFacts,
    quantization: tuple[QuantizationChoice, ...] = (),
    *,
    platform_id: str = "",
    excluded: Mapping[str, Reason] | None = None,
    executor: Choice | None = None,
    launcher: Choice | None = None,
) -> Plan:
    """Chooses kernels for every site of the model and of the engine; with an ``executor``, of its own for those of the
    model, and with a ``launcher``, for the ranks that it starts.

    ``platform_facts`` are of the platform ``platform_id``, or of the only one of their name.
    Measurements are those of ``platform.measurements`` and those in wheels that the platform vouches for.
    ``quantization`` are the methods of the weight formats in ``facts`` (:mod:`llmk.planning.formats`). ``excluded``
    maps ids that can't be loaded to the reason. Raises SelectionError if no kernel supports a site, a pin can't be
    honoured, two candidates tie, or the executor or the launcher can't be loaded.
    """
    platform = next(p for p in registry.platforms if (platform_id or platform_facts.name) in (p.spec.id, p.spec.name))
    model = next(m for m in registry.of(ModelSpec) if m.spec.id == facts.model)
    ids = {method.id for method in quantization}
    methods = [method for method in registry.of(QuantizationSpec) if method.spec.id in ids]
    dtype, warnings = choose_dtype(config, facts, platform_facts)
    vouched = (CORE, platform.plugin.distribution, *platform.spec.vouches, *config.plugins.trust)
    vouched_names = frozenset(canonicalize_name(name) for name in vouched)
    shipped = [r.spec for r in registry.of(TunedConfigs) if r.plugin.distribution in vouched_names]
    measured, stale = load_measurements(config.platform.measurements, platform_facts, shipped)
    traffic = load_traffic(config.platform.traffic)
    known = (dtype, vouched_names, measured, traffic, excluded or {}, executor)
    resolver = Resolver(registry, config, platform_facts, *known)
    share = sharded(facts, config.parallel.tensor)
    choices = resolver.choose_all(share)
    own = _engine_choices(registry, config, checkpoint, excluded or {}, launcher)
    resolver.wheels |= {piece.distribution: piece.version for choice in own for piece in choice.pieces}
    plugins = [platform.plugin, model.plugin, *(method.plugin for method in methods)]
    others = {plugin.distribution: plugin.version for plugin in plugins}
    return Plan(
        platform=platform_facts,
        platform_id=platform.spec.id,
        platform_implementation=platform.spec.implementation,
        model=model.spec.id,
        model_implementation=model.spec.implementation or TREE_MODEL,
        architecture=facts.architecture,
        dtype=dtype,
        choices=(*choices, *own),
        wheels=tuple(sorted((resolver.wheels | others).items())),
        warnings=(*registry.warnings, *warnings, *stale, *resolver.check_rules()),
        quantization=quantization,
        variants=tuple(variants(facts)),
        tensor=config.parallel.tensor,
        pipeline=config.parallel.pipeline,
        traffic=tuple(traffic.shares.items()),
        traffic_source=traffic.source,
    )


def _engine_choices(
    registry: Registry, config: Config, checkpoint: Checkpoint, excluded: Mapping[str, Reason], launcher: Choice | None
) -> list[Choice]:
    """What the engine uses besides kernels: the scheduling policy, and a router, a speculator and a launcher where
    used."""
    if launcher is not None:
        check_loaded(launcher, excluded)
    router = choose_router(registry, config, excluded)
    speculator = choose_speculator(registry, config, checkpoint, excluded)
    return [choose_policy(registry, config, excluded), *filter(None, (router, speculator, launcher))]


def choose_dtype(config: Config, facts: ModelFacts, platform: PlatformFacts) -> tuple[str, list[str]]:
    """The engine's dtype, and a warning if it is not the requested one or not native to the platform."""
    native = f"{platform.label} (native: {', '.join(platform.dtypes)})"
    wanted = facts.dtype if config.model.dtype == "auto" else config.model.dtype
    if wanted in platform.dtypes:
        return wanted, []
    if wanted == config.model.dtype:
        return wanted, [f"model.dtype {wanted} is not native to {native} and may be slow"]
    chosen = platform.dtypes[0]
    text = f"the checkpoint is {wanted}, which is not native to {native}: running in {chosen}"
    return chosen, [f'{text}; model.dtype = "{wanted}" insists on it']


@dataclass(slots=True)
class Resolver:
    """Chooses kernels site by site, those of the ``executor`` if there is one. Collects the distributions in use
    (``wheels``), sites and ops by kind (``seen``), and by kind and id why what the user prefers serves no site
    (``preferred``; ``None``: it serves one)."""

    registry: Registry
    config: Config
    platform: PlatformFacts
    dtype: str
    vouched: frozenset[str]
    measured: Measurements
    traffic: Traffic
    excluded: Mapping[str, Reason]
    executor: Choice | None = None
    wheels: dict[str, str] = field(default_factory=lambda: {CORE: metadata.version(CORE)})
    seen: dict[str, set[str]] = field(default_factory=lambda: {k: set() for k in ("attention", "linear", "moe", "op")})
    preferred: dict[tuple[str, str], Reason | None] = field(default_factory=dict)

    @property
    def _common(self) -> dict[str, Any]:
        """Fields of every query."""
        return {"platform": self.platform, "dtype": self.dtype, "deterministic": self.config.engine.deterministic}

    def kernels(self, kind: str) -> list[Candidate]:
        """What sites of a kind are chosen from: the engine's kernels, or the executor's own."""
        if self.executor is None:
            return self.registry.kernels(kind)
        return [kernel for kernel in kernels_of(self.registry, self.executor) if kernel.kind == kind]

    def queries(self, facts: ModelFacts) -> list[Query]:
        """Those of attention, linear and MoE sites."""
        cache = self.config.cache
        stored: dict[str, Any] = {
            "block_size": cache.block_size,
            "cache_dtype": self.dtype if cache.dtype == "auto" else cache.dtype,
        }
        return site_queries(facts, **stored, **self._common)

    def choose_all(self, facts: ModelFacts) -> list[Choice]:
        """Attention and linear sites come first, since queries of ops contain the kernels chosen there; an executor
        has no ops."""
        if self.executor is not None:
            check_loaded(self.executor, self.excluded)
            self.wheels |= {piece.distribution: piece.version for piece in self.executor.pieces}
            return [self.executor, *map(self.choose, self.queries(facts))]
        common = self._common
        chosen = {(query.kind, query.site): self.choose(query) for query in self.queries(facts)}
        named = {op.site for op in facts.ops}
        sizes = {"vocab_size": facts.vocab_size, "hidden_size": facts.hidden_size}
        states = {state.site for state in facts.recurrent}
        drafted = states if self.config.speculation.use else ()
        most = {"max_drafts": self.config.speculation.num_drafts}
        narrow = {} if facts.state_dtype in ("", "float32") else {"state_dtype": facts.state_dtype}
        own = [replace(op, facts={**op.facts, **most}) if op.site in drafted else op for op in facts.ops]
        own = [replace(op, facts={**op.facts, **narrow}) if op.site in states else op for op in own]
        rows, block = {rows.site for rows in facts.rows}, {"block_size": self.config.cache.block_size}
        own = [replace(op, facts={**op.facts, **block}) if op.site in rows else op for op in own]
        ops = [*own, *(OpFacts(site=op, op=op, facts=sizes) for op in ENGINE_OPS if op not in named)]
        queries = [make_query(OpQuery, op, **self._neighbours(op, chosen), **common) for op in ops]
        asked = self._spanning(facts, own)
        wider = [make_query(OpQuery, op, **self._neighbours(op, chosen), **common) for op in asked]
        spanning = [choice for query in wider if (choice := self._chosen_if_served(query))]
        return [*chosen.values(), *map(self.choose, queries), *spanning]

    def _spanning(self, facts: ModelFacts, ops: Iterable[OpFacts]) -> Iterator[OpFacts]:
        """Ops in place of an op site and the linear site after it, by the patterns of contracts."""
        patterns = {each.pattern: each.op for each in self.registry.contracts.values() if each.pattern}
        by_site, linear = {op.site: op for op in ops}, {each.site for each in facts.linear}
        for first, second in facts.chains:
            before = by_site.get(first)
            if before is None or before.linear or before.attention or second not in linear:
                continue
            if op := patterns.get((before.op, "linear")):
                yield replace(before, site=f"{first}+{second}", op=op, linear=second)

    def _chosen_if_served(self, query: OpQuery) -> Choice | None:
        """The choice for an op that may be left out; ``None`` where no kernel but the reference serves it that someone
        vouches for, or that the user names."""
        rules, candidates = self.config.select.op, [c for c in self.kernels("op") if c.spec.op == query.op]
        named = {*rules.prefer, *([rules.use] if isinstance(rules.use, str) else rules.use.values())}
        facts = facts_to_know(query.op, (candidate.spec for candidate in candidates))
        wanted = [c.spec for c in candidates if self._is_vouched(c) or c.spec.id in named]
        if not any(spec.tier > Tier.REFERENCE and match(spec, query, facts) for spec in wanted):
            return None
        try:
            return self.choose(query)
        except NoCandidate:  # those that match can't be loaded
            return None

    def _neighbours(self, op: OpFacts, chosen: Mapping[tuple[str, str], Choice]) -> dict[str, str | None]:
        """The kernels chosen at the op's own sites, and their layouts."""
        found: dict[str, str | None] = {"attention": None, "linear": None}
        for kind, layout in (("attention", "cache_layout"), ("linear", "weight_layout")):
            site = getattr(op, kind)
            if site and (kind, site) not in chosen:
                raise SelectionError(f"op site {op.site!r} names {kind} site {site!r}, which the model's facts lack")
            if site:
                found[kind] = id = chosen[kind, site].id
                found[layout] = next(c.spec.layout for c in self.kernels(kind) if c.spec.id == id)
        return found

    def choose(self, query: Query, inside: tuple[str, ...] = ()) -> Choice:
        """The choice for one query; ``inside`` are the composite ops that it is a part of."""
        op = query.op if isinstance(query, OpQuery) else ""
        self.seen[query.kind] |= {query.site, op}
        candidates = [c for c in self.kernels(query.kind) if c.spec.op == op]
        if self.executor is not None and not candidates:
            return whole_choice(self.registry, self.executor, query)
        refused = self._refuse(query, op, candidates, inside)
        ranking = self._ranking(query, op, refused)
        while able := [c for c in candidates if c.spec.id not in refused]:
            ranges: list[TokenRange] = []
            if not (unfit := ranking.gaps(able)):
                try:
                    ranges = ranking.lay_out(able)
                    parts = self._parts(query, ranges, inside)
                except IncompatibleParts as misfit:
                    unfit = dict.fromkeys(misfit.ids, misfit.reason)
            if unfit:
                refused |= {id: (reason,) for id, reason in unfit.items()}
                if ranking.pin in unfit:
                    raise self._pin_error(query, ranking.pin, refused[ranking.pin])
                continue
            losers = [c for c in able if all(c is not each.winner for each in ranges)]
            refused |= {c.spec.id: (ranking.loser(c, ranges),) for c in losers}
            self._note_preferences(query.kind, ranges, refused)
            return replace(
                self._choice(query, op, ranges, refused, parts), alternatives=tuple(ranking.alternatives(able))
            )
        raise NoCandidate(
            f"no installed kernel serves {f'op {op!r}' if op else query.kind} at site {query.site!r} "
            f"on {self.platform.label} in {self.dtype}",
            reasons=[reason.about(id) for id, reasons in refused.items() for reason in reasons],
            hint="install a wheel with such a kernel; `llmk plugins` lists the installed ones",
        )

    def _note_preferences(self, kind: str, ranges: Sequence[TokenRange], refused: Refusals) -> None:
        """Remembers why what the user prefers does not serve a site, or that it serves one."""
        chosen = {each.winner.spec.id for each in ranges}
        for id in getattr(self.config.select, kind).prefer:
            if id in chosen:
                self.preferred[kind, id] = None
            elif id in refused:
                self.preferred.setdefault((kind, id), refused[id][0])

    def _refuse(self, query: Query, op: str, candidates: Sequence[Candidate], inside: tuple[str, ...]) -> Refusals:
        """The candidates that can't be used, with all reasons."""
        refused: Refusals = {}
        for out, reason in self.registry.refused:
            if out.kind == query.kind and out.spec.op == op:
                refused[out.spec.id] = (reason,)
        facts = facts_to_know(op, (candidate.spec for candidate in candidates))
        for candidate in candidates:
            id = candidate.spec.id
            reasons = [*match(candidate.spec, query, facts).reasons]
            if id in getattr(self.config.select, query.kind).avoid:
                reasons.append(Reason("avoided", hint=f"[select.{query.kind}] avoid names it"))
            if id in self.excluded:
                reasons.append(self.excluded[id])
            if id in inside:
                reasons.append(Reason("recursive", found=f"it is a part of itself through {' > '.join(inside)}"))
            if reasons:
                refused[id] = tuple(reasons)
        return refused

    def _ranking(self, query: Query, op: str, refused: Refusals) -> Ranking:
        rules = getattr(self.config.select, query.kind)
        line = f"[select.{query.kind}]"
        for_all = isinstance(rules.use, str)
        pin = rules.use if for_all else next(filter(None, map(rules.use.get, (query.site, _role(query.site), op))), "")
        known = {c.spec.id: c.spec.op for c in self.kernels(query.kind)}
        if pin in refused:
            raise self._pin_error(query, pin, refused[pin])
        if pin and pin not in known:
            raise unknown_id(line, pin, list(known), [r for out, r in self.registry.refused if out.spec.id == pin])
        if pin and known[pin] != op and not for_all:
            raise self._pin_error(query, pin, [Reason("op", op, known[pin])])
        measured, options = self.measured.of(query), (not op, query.deterministic, self.traffic)
        return Ranking(query.site, line, pin, rules.prefer, measured, self._is_vouched, *options)

    def _pin_error(self, query: Query, pin: str, reasons: Sequence[Reason]) -> SelectionError:
        what = f"{query.kind} site {query.site!r} on {self.platform.label} in {self.dtype}"
        hint = f"take it out of [select.{query.kind}] use, or name another; `llmk explain --verbose` lists them"
        return SelectionError(f"{pin} is pinned for {what}, but can't serve it", reasons=reasons, hint=hint)

    def _parts(self, query: Query, ranges: Sequence[TokenRange], inside: tuple[str, ...]) -> tuple[Choice, ...]:
        """Chooses kernels for the parts of every composite among the winners. Raises IncompatibleParts for one with a
        part that no kernel supports."""
        parts: dict[str, Choice] = {}
        for spec in (each.winner.spec for each in ranges):
            for part in spec.parts:
                if part in GIVEN_PARTS or part in parts or not isinstance(query, OpQuery):
                    continue
                try:
                    inner = replace(query, op=part, site=f"{query.site}.{part}")
                    parts[part] = self.choose(inner, (*inside, spec.id))
                except NoCandidate as error:
                    found = "; ".join(str(reason) for reason in error.reasons) or "nothing provides it"
                    raise IncompatibleParts([spec.id], Reason("part_missing", part, found)) from error
        return tuple(parts.values())

    def _choice(
        self, query: Query, op: str, ranges: Sequence[TokenRange], refused: Refusals, parts: tuple[Choice, ...]
    ) -> Choice:
        known = [*self.kernels(query.kind), *(out for out, _ in self.registry.refused)]
        wheels = {r.spec.id: r.plugin.distribution for r in known}
        rejected = tuple(Rejection(id, wheels[id], reasons) for id, reasons in refused.items())
        self.wheels |= {each.winner.plugin.distribution: each.winner.plugin.version for each in ranges}
        layout = "" if op else ranges[0].winner.spec.layout
        pieces = tuple(map(_piece, ranges))
        if self.executor is not None:  # which loads them itself
            pieces = tuple(replace(piece, implementation="") for piece in pieces)
        return Choice(query.kind, query.site, op, query, pieces, rejected, parts, layout)

    def _is_vouched(self, candidate: Candidate) -> bool:
        """Whether the core, the platform or the user vouches for the wheel; permitting an override does too."""
        return candidate.plugin.distribution in self.vouched or bool(candidate.spec.overrides)

    def check_rules(self) -> list[str]:
        """Warnings about ids in rules that are unknown, or preferred and serve no site. Raises SelectionError for a pin
        of a site that this model doesn't have."""
        warnings = []
        for kind, seen in self.seen.items():
            rules = getattr(self.config.select, kind)
            ops = {c.spec.id: c.spec.op for c in self.kernels(kind)}
            pinned = rules.use if isinstance(rules.use, dict) else {ops.get(rules.use): rules.use} if rules.use else {}
            for target, pin in pinned.items():
                if target not in seen:
                    close = get_close_matches(str(target), seen, n=1) or sorted(seen - {""}) or ["none"]
                    message = f"[select.{kind}] use pins {pin} for {target or 'sites'}, which this model does not have"
                    raise SelectionError(message, hint=f"{kind} sites: {', '.join(close)}")
            for rule in ("prefer", "avoid"):
                unknown = [id for id in getattr(rules, rule) if id not in ops]
                hints = ((id, how_to_install(id)) for id in unknown)
                message = f"[select.{kind}] {rule} names {{}}, which is not installed"
                warnings += [message.format(id) + (f" ({hint})" if hint else "") for id, hint in hints]
        for (kind, id), reason in self.preferred.items():
            if reason is not None:
                warnings.append(f"[select.{kind}] prefer names {id}, which serves no site here: {reason}")
        return warnings


def _piece(each: TokenRange) -> Piece:
    spec, plugin = each.winner.spec, each.winner.plugin
    where = (plugin.distribution, plugin.version, spec.implementation, spec.prepare, spec.tier.name.lower())
    return Piece(each.start, each.stop, spec.id, *where, each.why, spec.capture, spec.jit, spec.parts)


def _role(site: str) -> str:
    """The role of a site whose name has a number (:class:`llmk.tree.Sites`); a pin of the role holds for all of it."""
    return _NUMBER.sub("", site)
