"""The resolver: turns a model's facts into queries, and candidates into a plan that can say why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

import importlib_metadata as metadata
from packaging.utils import canonicalize_name

from llmk.api import (
    AttentionQuery,
    Checkpoint,
    Choice,
    LinearQuery,
    ModelFacts,
    MoEQuery,
    OpFacts,
    OpQuery,
    Piece,
    Plan,
    PlatformFacts,
    PlatformSpec,
    Query,
    Reason,
    Rejection,
    SelectionError,
)
from llmk.kernel.discovery import CORE
from llmk.kernel.matching import located, match
from llmk.kernel.ranking import Candidate, Misfit, Ranking, Slot
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.selection import choose_quantization, find_model, unknown_id

if TYPE_CHECKING:
    from llmk.config import Config

ENGINE_OPS = (
    "update_rows",
    "build_step",
    "map_slots",
    "append_tokens",
    "embedding",
    "apply_penalties",
    "apply_bias",
    "sample",
    "logprobs",
)
"""Ops that the engine uses whatever the model is; each is a site of its own name unless the model's facts have one."""

GIVEN_PARTS = frozenset({"attention.write", "linear"})
"""Parts of composite ops that stand for what was chosen at the op's own sites."""

NOTHING: Mapping[str, Reason] = MappingProxyType({})
UNMEASURED: Mapping[tuple[str, str], float] = MappingProxyType({})


class NoCandidate(SelectionError):
    """Nothing that is installed can serve a site."""


def resolve(
    registry: Registry,
    config: Config,
    checkpoint: Checkpoint,
    facts: ModelFacts,
    platform_facts: PlatformFacts,
    *,
    measured: Mapping[tuple[str, str], float] = UNMEASURED,
    excluded: Mapping[str, Reason] = NOTHING,
) -> Plan:
    """Chooses for every site of the model and of the engine.

    ``measured`` maps (site, id) to a time relative to the reference's on this machine; ``excluded`` are ids that are known not to
    load, with the reason. Raises SelectionError where a site can't be served, a pin can't be honoured or two candidates tie,
    CheckpointError where no method claims the checkpoint's quantization.
    """
    platform = next(p for p in registry.platforms if p.spec.name == platform_facts.name)
    dtype, warnings = choose_dtype(config, facts, platform_facts)
    quantization = choose_quantization(registry, config, checkpoint)
    resolver = Resolver(registry, config, platform, platform_facts, dtype, measured, excluded)
    weight_format = quantization.spec.weight_format if quantization else "plain"
    choices = resolver.choose_all(facts, weight_format)
    model = find_model(registry, facts.model)
    wheels = dict(resolver.wheels)
    for registered in (platform, model, quantization):
        if registered is not None:
            wheels[registered.plugin.distribution] = registered.plugin.version
    return Plan(
        platform=platform_facts,
        platform_id=platform.spec.id,
        platform_implementation=platform.spec.implementation,
        model=model.spec.id,
        model_implementation=model.spec.implementation,
        architecture=facts.architecture,
        dtype=dtype,
        quantization=quantization.spec.id if quantization else "",
        quantization_implementation=quantization.spec.implementation if quantization else "",
        choices=tuple(choices),
        wheels=tuple(sorted(wheels.items())),
        warnings=(*registry.warnings, *warnings, *resolver.unused_rules()),
    )


def choose_dtype(config: Config, facts: ModelFacts, platform: PlatformFacts) -> tuple[str, list[str]]:
    """The engine's dtype, and a warning where it is not what was asked for or not native to the platform."""
    native = ", ".join(platform.dtypes)
    wanted = config.model.dtype
    if wanted != "auto":
        slow = f"model.dtype {wanted} is not native to {platform.label} (native: {native}); it may be slow"
        return wanted, [] if wanted in platform.dtypes else [slow]
    if facts.dtype in platform.dtypes:
        return facts.dtype, []
    chosen = platform.dtypes[0]
    text = f"the checkpoint is {facts.dtype}, which {platform.label} lacks (native: {native}); running in {chosen}"
    return chosen, [f"{text}; set model.dtype to choose"]


class Resolver:
    """Chooses site by site. ``wheels`` collects the distributions that take part."""

    def __init__(
        self,
        registry: Registry,
        config: Config,
        platform: Registered[PlatformSpec],
        facts: PlatformFacts,
        dtype: str,
        measured: Mapping[tuple[str, str], float],
        excluded: Mapping[str, Reason],
    ) -> None:
        self.registry = registry
        self.config = config
        self.facts = facts
        self.dtype = dtype
        self.measured = measured
        self.excluded = excluded
        self.wheels = {CORE: metadata.version(CORE)}
        trusted = (CORE, platform.plugin.distribution, *platform.spec.vouches, *config.plugins.trust)
        self._trusted = {canonicalize_name(name) for name in trusted}
        self._seen: dict[str, set[str]] = {"attention": set(), "linear": set(), "moe": set(), "op": set()}

    def choose_all(self, facts: ModelFacts, weight_format: str) -> list[Choice]:
        """Attention and linear sites first: ops are asked about with what was chosen there."""
        first = [self.choose(query) for query in self._queries(facts, weight_format)]
        chosen = {(choice.kind, choice.site): choice for choice in first}
        named = {op.site for op in facts.ops}
        sizes = {"vocab_size": facts.vocab_size, "hidden_size": facts.hidden_size}
        engine_ops = [OpFacts(site=op, op=op, facts=sizes) for op in ENGINE_OPS if op not in named]
        return first + [self.choose(self._op_query(op, chosen)) for op in (*facts.ops, *engine_ops)]

    def _queries(self, facts: ModelFacts, weight_format: str) -> Iterator[Query]:
        cache = self.config.cache
        deterministic = self.config.engine.deterministic
        for a in facts.attention:
            yield AttentionQuery(
                platform=self.facts,
                site=a.site,
                dtype=self.dtype,
                deterministic=deterministic,
                num_heads=a.num_heads,
                num_kv_heads=a.num_kv_heads,
                head_dim=a.head_dim,
                block_size=cache.block_size,
                cache_dtype=self.dtype if cache.dtype == "auto" else cache.dtype,
                scale=a.head_dim**-0.5 if a.scale is None else a.scale,
                sliding_window=a.sliding_window,
                softcap=a.softcap,
                sinks=a.sinks,
                causal=a.causal,
            )
        for linear in facts.linear:
            yield LinearQuery(
                platform=self.facts,
                site=linear.site,
                dtype=self.dtype,
                deterministic=deterministic,
                in_features=linear.in_features,
                out_features=linear.out_features,
                bias=linear.bias,
                weight_format=weight_format if linear.quantizable else "plain",
            )
        for moe in facts.moe:
            yield MoEQuery(
                platform=self.facts,
                site=moe.site,
                dtype=self.dtype,
                deterministic=deterministic,
                num_experts=moe.num_experts,
                top_k=moe.top_k,
                hidden_size=moe.hidden_size,
                intermediate_size=moe.intermediate_size,
                activation=moe.activation,
                weight_format=weight_format,
            )

    def _op_query(self, op: OpFacts, chosen: Mapping[tuple[str, str], Choice]) -> OpQuery:
        attention = chosen.get(("attention", op.attention or ""))
        linear = chosen.get(("linear", op.linear or ""))
        for kind, site, choice in (("attention", op.attention, attention), ("linear", op.linear, linear)):
            if site and choice is None:
                raise SelectionError(f"op site {op.site!r} names {kind} site {site!r}, which the model's facts lack")
        return OpQuery(
            platform=self.facts,
            site=op.site,
            dtype=self.dtype,
            deterministic=self.config.engine.deterministic,
            op=op.op,
            facts=op.facts,
            attention=attention.id if attention else None,
            cache_layout=self._layout(attention) if attention else None,
            linear=linear.id if linear else None,
            weight_layout=self._layout(linear) if linear else None,
        )

    def _layout(self, choice: Choice) -> str:
        return next(c.spec.layout for c in self.registry.kernels(choice.kind) if c.spec.id == choice.id)

    def choose(self, query: Query, inside: tuple[str, ...] = ()) -> Choice:
        """The choice for one query; ``inside`` are the composite ops that it is a part of."""
        op = query.op if isinstance(query, OpQuery) else ""
        self._seen[query.kind] |= {query.site, op}
        candidates = [c for c in self.registry.kernels(query.kind) if c.spec.op == op]
        refused = self._refused(query, candidates, inside)
        pin = self._pin(query, op, refused)
        able = [c for c in candidates if c.spec.id not in refused]
        measured = {id: time for (site, id), time in self.measured.items() if site == query.site}
        prefer = getattr(self.config.select, query.kind).prefer
        ranking = Ranking(query.site, f"[select.{query.kind}]", pin, prefer, measured, self._is_vouched)
        while able:
            try:
                slots = ranking.lay_out(able, one_layout=not op)
                parts = self._parts(query, slots, inside)
            except Misfit as misfit:
                refused |= {id: (misfit.reason,) for id in misfit.ids}
                if pin in refused:
                    raise self._pin_error(query, pin, refused[pin]) from misfit
                able = [c for c in able if c.spec.id not in refused]
                continue
            winners = {slot.winner.spec.id for slot in slots}
            losers = [c for c in able if c.spec.id not in winners]
            refused |= {c.spec.id: (ranking.loser(c, slots, one_layout=not op),) for c in losers}
            return self._choice(query, op, slots, refused, parts)
        raise self._no_candidate(query, op, refused)

    def _refused(
        self, query: Query, candidates: Sequence[Candidate], inside: tuple[str, ...]
    ) -> dict[str, tuple[Reason, ...]]:
        refused: dict[str, tuple[Reason, ...]] = {}
        avoid = getattr(self.config.select, query.kind).avoid
        for candidate in candidates:
            id = candidate.spec.id
            reasons = list(match(candidate.spec, query).reasons)
            if id in avoid:
                reasons.append(Reason("avoided", hint=f"[select.{query.kind}] avoid names it"))
            if id in self.excluded:
                reasons.append(self.excluded[id])
            if id in inside:
                reasons.append(Reason("recursive", found=f"part of itself through {' > '.join(inside)}"))
            if reasons:
                refused[id] = tuple(reasons)
        op = query.op if isinstance(query, OpQuery) else ""
        for out in self.registry.refused:
            if out.kind == query.kind and out.registered.spec.op == op:
                refused[out.registered.spec.id] = (out.reason,)
        return refused

    def _pin(self, query: Query, op: str, refused: Mapping[str, tuple[Reason, ...]]) -> str:
        use = getattr(self.config.select, query.kind).use
        pin: str = use if isinstance(use, str) else use.get(query.site) or use.get(op) or ""
        if not pin:
            return ""
        known = {c.spec.id: c.spec for c in self.registry.kernels(query.kind)}
        if pin in refused:
            raise self._pin_error(query, pin, refused[pin])
        if pin not in known:
            raise unknown_id(self.registry, query.kind, pin, list(known))
        if known[pin].op != op:
            if isinstance(use, str):
                return ""
            reason = Reason("op", op, known[pin].op)
            raise self._pin_error(query, pin, (reason,))
        return pin

    def _pin_error(self, query: Query, pin: str, reasons: Sequence[Reason]) -> SelectionError:
        return SelectionError(
            f"{pin} is pinned for {query.kind} site {query.site!r} but can't serve it on {self.facts.label}",
            reasons=reasons,
            hint=f"take it out of [select.{query.kind}] use, or name another; `llmk explain --verbose` lists them",
        )

    def _no_candidate(self, query: Query, op: str, refused: Mapping[str, tuple[Reason, ...]]) -> NoCandidate:
        what = f"op {op!r}" if op else query.kind
        reasons = [r for id, why in refused.items() for r in located(why, id)]
        hint = "install a wheel that provides it; `llmk plugins` lists what is installed"
        return NoCandidate(
            f"nothing that is installed serves {what} at site {query.site!r} on {self.facts.label} in {self.dtype}",
            reasons=reasons,
            hint="" if reasons else hint,
        )

    def _parts(self, query: Query, slots: Sequence[Slot], inside: tuple[str, ...]) -> tuple[Choice, ...]:
        """Resolves the parts of every composite among the winners; Misfit for one that has a part nothing serves."""
        parts: dict[str, Choice] = {}
        for slot in slots:
            spec = slot.winner.spec
            for part in spec.parts:
                if part in GIVEN_PARTS or part in parts:
                    continue
                assert isinstance(query, OpQuery), "only ops have parts"
                inner = replace(query, op=part, site=f"{query.site}.{part}")
                try:
                    parts[part] = self.choose(inner, (*inside, spec.id))
                except NoCandidate as error:
                    reasons = "; ".join(str(reason) for reason in error.reasons)
                    raise Misfit([spec.id], Reason("part_missing", part, reasons or "nothing provides it")) from error
        return tuple(parts.values())

    def _choice(
        self,
        query: Query,
        op: str,
        slots: Sequence[Slot],
        refused: Mapping[str, tuple[Reason, ...]],
        parts: tuple[Choice, ...],
    ) -> Choice:
        wheels = {c.spec.id: c.plugin for c in self.registry.kernels(query.kind)}
        wheels |= {out.registered.spec.id: out.registered.plugin for out in self.registry.refused}
        for slot in slots:
            self.wheels[slot.winner.plugin.distribution] = slot.winner.plugin.version
        return Choice(
            kind=query.kind,
            site=query.site,
            op=op,
            query=query,
            pieces=tuple(_piece(slot) for slot in slots),
            rejected=tuple(Rejection(id, wheels[id].distribution, why) for id, why in refused.items()),
            parts=parts,
        )

    def _is_vouched(self, candidate: Candidate) -> bool:
        """Core's, the platform's and those they or the user name; an override that took effect has the user's consent."""
        return candidate.plugin.distribution in self._trusted or bool(candidate.spec.overrides)

    def unused_rules(self) -> list[str]:
        """Warnings about names in ``select`` that meet nothing. Raises SelectionError for a pin of a site that is not there."""
        warnings = []
        for kind, seen in self._seen.items():
            rules = getattr(self.config.select, kind)
            known = [c.spec.id for c in self.registry.kernels(kind)]
            for site in rules.use if isinstance(rules.use, dict) else ():
                if site not in seen:
                    close = get_close_matches(site, seen, n=1)
                    hint = f"did you mean {close[0]!r}?" if close else f"sites are {', '.join(sorted(seen - {''}))}"
                    raise SelectionError(f"[select.{kind}] use pins site {site!r}, which this model lacks", hint=hint)
            for rule in ("prefer", "avoid"):
                unknown = [id for id in getattr(rules, rule) if id not in known]
                warnings += [f"[select.{kind}] {rule} names {id}, which is not installed" for id in unknown]
        return warnings


def _piece(slot: Slot) -> Piece:
    spec, plugin = slot.winner.spec, slot.winner.plugin
    return Piece(
        start=slot.start,
        stop=slot.stop,
        id=spec.id,
        distribution=plugin.distribution,
        version=plugin.version,
        implementation=spec.implementation,
        prepare=spec.prepare,
        tier=spec.tier.name.lower(),
        why=slot.why,
        parts=spec.parts,
    )
