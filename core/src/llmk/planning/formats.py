"""Chooses the quantization methods of a checkpoint, and with them the weight format of each of the model's sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from llmk.api import (
    OK,
    Checkpoint,
    CheckpointError,
    LinearFacts,
    ModelFacts,
    MoEFacts,
    QuantizationSpec,
    SelectionError,
)
from llmk.api.errors import LlmkError, PluginError, describe
from llmk.api.facts import OpFacts
from llmk.api.matching import evaluate
from llmk.api.plan import QuantizationChoice, SiteVariant
from llmk.api.specs import ReadsModule
from llmk.api.verdict import Reason
from llmk.kernel.first_party import missing_wheel
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watched
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config, SelectSection

Method = Registered[QuantizationSpec]
Site = TypeVar("Site", LinearFacts, MoEFacts)

_LINE = "[select.quantization]"


@dataclass(slots=True)
class WeightFormats:
    """The quantization methods that claim a checkpoint, or the one of plain weights while they load. ``used`` are those
    that some module needs, by weight format."""

    rules: SelectSection
    reads: Sequence[tuple[Method, ReadsModule]]
    used: dict[str, Method] = field(default_factory=dict)

    @property
    def choices(self) -> tuple[QuantizationChoice, ...]:
        """The methods in use."""
        specs = [method.spec for method in self.used.values()]
        return tuple(QuantizationChoice(s.id, s.implementation, s.weight_format, s.weight_bits) for s in specs)

    def of(self, modules: Sequence[str], *, head: bool = False) -> str:
        """The weight format of modules that are packed into one layer, by their names in the checkpoint; ``head``: of
        the LM head, which not all methods are asked about.

        Raises CheckpointError if their formats differ or no method reads one of them, SelectionError if several methods
        read the same module or produce the same format.
        """
        reads = [each for each in self.reads if each[0].spec.heads or not head]
        methods = {module: self._method_of(module, reads) for module in modules}
        formats = {module: method.spec.weight_format if method else "plain" for module, method in methods.items()}
        if len(set(formats.values())) > 1:
            stored = ", ".join(f"{module} ({stored})" for module, stored in formats.items())
            raise CheckpointError(
                f"the checkpoint stores modules in different weight formats that are computed by one GEMM: {stored}",
                hint="quantize all of them in the same format, or list all of them as unquantized",
            )
        return self._use(methods[modules[0]])

    def of_all(self) -> str:
        """The weight format of modules whose names are unknown, so that one method must read all of them. Raises
        SelectionError if there are several."""
        return self._use(elect(_LINE, self.rules, [(method, OK) for method, _ in self.reads])[0])

    def _method_of(self, module: str, asked: Sequence[tuple[Method, ReadsModule]]) -> Method | None:
        verdicts = [(method, reads(module)) for method, reads in asked]
        stored = [(method, verdict) for method, verdict in verdicts if verdict is not None]
        if able := [(method, verdict) for method, verdict in stored if verdict]:
            return elect(_LINE, self.rules, able)[0] if len(able) > 1 else able[0][0]
        if not verdicts or len(stored) < len(verdicts):
            return None
        raise CheckpointError(
            f"the checkpoint stores {module} in a format that no method reads"
            f" (chosen for others: {', '.join(method.spec.id for method, _ in verdicts)})",
            reasons=[reason.about(method.spec.id) for method, verdict in stored for reason in verdict.reasons],
            hint=_hint(),
        )

    def _use(self, method: Method | None) -> str:
        if method is None:
            return "plain"
        other = self.used.setdefault(method.spec.weight_format, method)
        if other is not method:
            names = f"{other.spec.id} and {method.spec.id}"
            message = f"{names} both load modules of this checkpoint in the weight format {method.spec.weight_format!r}"
            raise SelectionError(message, hint=f'use one of them for all: {_LINE} use = "{other.spec.id}"')
        return method.spec.weight_format


def choose_formats(registry: Registry, config: Config, checkpoint: Checkpoint) -> WeightFormats | None:
    """The methods that claim the checkpoint's weights, or the one that ``model.quantization`` names; ``None`` if the
    weights are plain and stay so. Raises CheckpointError, SelectionError."""
    wanted, rules = config.model.quantization, config.select.quantization
    if not (wanted or checkpoint.quantization):
        return None
    methods = [method for method in registry.of(QuantizationSpec) if method.spec.online == bool(wanted)]
    claims = [(method, evaluate(method.spec.claims, checkpoint)) for method in methods]
    if wanted:
        rules = rules.model_copy(update={"use": wanted})
        chosen = [elect("[model] quantization", rules, claims)[0]]
    elif rules.use:
        chosen = [elect(_LINE, rules, claims)[0]]
    else:
        chosen = [method for method, verdict in claims if verdict and method.spec.id not in rules.avoid]
    able = [method for method in chosen if method is not None]
    if not able:
        name, ids = checkpoint.quantization.get("quant_method", "unnamed"), [method.spec.id for method in methods]
        message = f"the checkpoint is quantized with {name!r}, which no installed method claims"
        reasons = [reason.about(method.spec.id) for method, verdict in claims for reason in verdict.reasons]
        raise CheckpointError(f"{message} (installed: {', '.join(ids) or 'none'})", reasons=reasons, hint=_hint())
    with _calling(able):
        return WeightFormats(rules, [(method, method.spec.modules(checkpoint)) for method in able])


def _hint() -> str:
    wheel = missing_wheel("quantization")
    where = f" (pip install {wheel})" if wheel else ""
    return f"install a wheel with a method that reads it{where}, or use an unquantized checkpoint"


@contextmanager
def _calling(methods: Sequence[Method]) -> Iterator[None]:
    """A context for code of methods: exceptions that are no LlmkErrors become PluginErrors."""
    ids, wheels = ", ".join(m.spec.id for m in methods), ", ".join(m.plugin.wheel for m in methods)
    try:
        with watched(f"modules of {ids} ({wheels})", methods[0].plugin.way_out):
            yield
    except (LlmkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{ids} of {wheels} can't say which modules of the checkpoint are quantized"
        raise PluginError(message, reasons=[Reason("modules_raised", found=describe(error))]) from error


def with_formats(facts: ModelFacts, formats: WeightFormats) -> ModelFacts:
    """``facts`` with the weight format of each site. A site whose layers have several formats becomes several sites,
    named ``site.format``; so do the ops over it. Facts that already have formats are unchanged.

    Raises CheckpointError, SelectionError.
    """
    with _calling([method for method, _ in formats.reads]):
        linear = {site.site: list(_by_format(site, formats)) if site.quantizable else [site] for site in facts.linear}
        moe = [part for site in facts.moe for part in _by_format(site, formats)]
    if not facts.linear and not facts.moe:
        formats.of_all()
    return replace(
        facts,
        linear=tuple(part for parts in linear.values() for part in parts),
        moe=tuple(moe),
        ops=tuple(op for each in facts.ops for op in _over(each, linear.get(each.linear or "", ()))),
    )


def _by_format(site: Site, formats: WeightFormats) -> Iterator[Site]:
    if not site.modules:
        yield replace(site, weight_format=formats.of_all())
        return
    layers: dict[str, list[tuple[str, ...]]] = {}
    for modules in site.modules:
        head = isinstance(site, LinearFacts) and site.parallel == "vocab"
        layers.setdefault(formats.of(modules, head=head), []).append(modules)
    if len(layers) == 1:
        yield replace(site, weight_format=next(iter(layers)))
        return
    for weight_format, own_modules in layers.items():
        name = f"{site.site}.{weight_format}"
        own: dict[str, Any] = {"modules": tuple(own_modules), "count": len(own_modules)}
        yield replace(site, site=name, variant_of=site.site, weight_format=weight_format, **own)


def _over(op: OpFacts, linear: Sequence[LinearFacts]) -> Iterator[OpFacts]:
    """The op, for each of the sites that its linear site became."""
    if len(linear) < 2:
        yield op
        return
    for part in linear:
        yield replace(op, site=f"{op.site}.{part.weight_format}", linear=part.site, variant_of=op.site)


def variants(facts: ModelFacts) -> Iterator[SiteVariant]:
    """The sites that :func:`with_formats` split."""
    for kind, sites in (("linear", facts.linear), ("moe", facts.moe)):
        for site in sites:
            if site.variant_of:
                yield SiteVariant(kind, site.variant_of, site.site, tuple(modules[0] for modules in site.modules))
    for op in facts.ops:
        if op.variant_of:
            yield SiteVariant("op", op.variant_of, op.site, (str(op.linear),))
