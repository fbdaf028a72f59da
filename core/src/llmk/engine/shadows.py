"""Which kernels run beside the chosen ones, and are compared with them: what ``[select]`` calls shadows.

They come of a second plan, in which shadows stand in the place of pins. So an op over attention, or one that contains a
product, is compared with what it would be if the shadow were chosen at that site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from llmk.api import Choice, Piece, Reason, SelectionError, Shadow, Tier
from llmk.engine.candidates import able
from llmk.kernel.report import render_rows
from llmk.kernel.resolver import resolve

if TYPE_CHECKING:
    from llmk.api import Plan
    from llmk.config.schema import KernelSelectSection
    from llmk.kernel.boot import Boot

REFERENCE = "reference"
"""Stands for the best kernel of the tier."""
_KINDS = ("attention", "linear", "moe", "op")

Table = dict[str, str]


def shadowed(boot: Boot) -> Boot:
    """``boot`` with the shadows that its configuration asks for in the plan.

    Raises SelectionError where one can't serve its site, with the reasons.
    """
    sections = {kind: section for kind in _KINDS if (section := _section(boot, kind)).shadow}
    if not sections or boot.plan.shadows:
        return boot
    beside = _second_plan(boot, sections)
    found, idle, warnings = [], set(sections), []
    recurrent = {site.site for site in boot.facts.recurrent}
    for choice in boot.plan.choices:
        if choice.query is None:
            continue
        other = beside.choice(choice.kind, choice.site)
        kinds = set(_kinds(boot, sections, other))
        if not kinds or not _differ(choice, other):
            continue
        if choice.site in recurrent:
            warnings.append(f"op site {choice.site} has no shadow: it changes recurrent state in place")
            continue
        idle -= kinds
        found.append(Shadow(other, max(sections[kind].shadow_rate for kind in kinds)))
    warnings += [f"[select.{kind}] shadow compares nothing: there is nothing else than was chosen" for kind in idle]
    pieces = [piece for shadow in found for piece in _pieces(shadow.choice)]
    wheels = dict(boot.plan.wheels) | {piece.distribution: piece.version for piece in pieces}
    plan = replace(
        boot.plan,
        shadows=tuple(found),
        wheels=tuple(sorted(wheels.items())),
        warnings=(*boot.plan.warnings, *warnings),
    )
    return replace(boot, plan=plan)


def render_shadows(plan: Plan) -> str:
    """The shadows beside what was chosen: where the two differ first, by range of token counts."""
    rows = []
    for shadow in plan.shadows:
        choice, other = plan.choice(shadow.choice.kind, shadow.choice.site), shadow.choice
        starts = _starts(choice, other)
        pairs = [(start, choice.difference(other, start)) for start in starts]
        changes = [one for i, one in enumerate(pairs) if i == 0 or one[1] != pairs[i - 1][1]]
        for start, pair in changes:
            wheel = next((f"{p.distribution} {p.version}" for p in _pieces(other) if pair and p.id == pair[1]), "")
            tokens = f"{start}-" if len(changes) > 1 else ""
            rows.append([choice.kind, choice.site, tokens, *(pair or ("", "the same")), wheel, f"{shadow.rate:g}"])
    return "\n" + render_rows(("kind", "site", "tokens", "kernel", "shadow", "wheel", "of steps"), rows)


def _second_plan(boot: Boot, sections: Mapping[str, KernelSelectSection]) -> Plan:
    """What would be chosen if shadows were pins."""
    excluded: dict[str, Reason] = {}
    select = boot.settings.config.select
    for kind, section in sections.items():
        use = _op_pins(boot, section, excluded) if kind == "op" else _pins(boot, kind, section)
        select = select.model_copy(update={kind: section.model_copy(update={"use": use})})
    config = boot.settings.config.model_copy(update={"select": select})
    given = boot.registry, config, boot.checkpoint, boot.facts, boot.platform_facts
    try:
        return resolve(*given, excluded=excluded)
    except SelectionError as error:
        message, hint = (text.replace("] use", "] shadow") for text in (error.message, error.hint))
        raise SelectionError(f"a shadow can't be had: {message}", reasons=error.reasons, hint=hint) from error


def _pins(boot: Boot, kind: str, section: KernelSelectSection) -> Table:
    """Pins of a kind whose sites are the model's own: the configuration's, and in their place shadows."""
    sites = {choice.site: choice for choice in boot.plan.choices if choice.kind == kind}
    use, rule = (dict.fromkeys(sites, r) if isinstance(r, str) else r for r in (section.use, section.shadow))
    rule = {s: _reference(boot, sites[s]) if id == REFERENCE and s in sites else id for s, id in rule.items()}
    return {site: id for site, id in (use | rule).items() if id}


def _reference(boot: Boot, choice: Choice) -> str:
    specs = able(boot.registry, choice)
    if specs and specs[0].tier is Tier.REFERENCE:
        return specs[0].id
    reasons = [reason.about(out.id) for out in choice.rejected for reason in out.reasons]
    raise SelectionError(f"no reference serves {choice.kind} site {choice.site!r}, to be its shadow", reasons=reasons)


def _op_pins(boot: Boot, section: KernelSelectSection, excluded: dict[str, Reason]) -> str | Table:
    """Pins of ops. A reference is one with all its parts: whatever has one and is none is ``excluded``."""
    specs = [kernel.spec for kernel in boot.registry.kernels("op")]
    named = {section.shadow} if isinstance(section.shadow, str) else set(section.shadow.values())
    if named == {REFERENCE}:
        have = {spec.op for spec in specs if spec.tier is Tier.REFERENCE}
        others = [spec.id for spec in specs if spec.op in have and spec.tier is not Tier.REFERENCE]
        excluded |= dict.fromkeys(others, Reason("not_reference", found="the shadow is to be a reference"))
        return ""
    if REFERENCE in named:  # what is excluded for one would be missing for another
        hint = "name the references by their ids too: reference.rms_norm"
        raise SelectionError("[select.op] shadow names ids and 'reference' side by side", hint=hint)
    ops = {spec.id: spec.op for spec in specs}
    use, rule = ({ops.get(r, r): r} if isinstance(r, str) else r for r in (section.use, section.shadow))
    return {target: id for target, id in (use | rule).items() if id}


def _kinds(boot: Boot, sections: Mapping[str, KernelSelectSection], choice: Choice) -> Iterator[str]:
    """The kinds of shadows that ask for what the second plan has at a site."""
    sites: dict[str, str | None] = {choice.kind: choice.site}
    if choice.kind == "op":
        op = next((op for op in boot.facts.ops if op.site == choice.site), None)
        sites = {"attention": op.attention, "linear": op.linear} if op else {}
    for kind, site in sites.items():
        if site and kind in sections and (isinstance(rule := sections[kind].shadow, str) or site in rule):
            yield kind
    if choice.kind == "op" and "op" in sections:
        rule = sections["op"].shadow
        names = [{part.site, part.op, *(piece.id for piece in part.pieces)} for part in choice.with_parts()]
        if rule == REFERENCE or any(not name.isdisjoint([rule] if isinstance(rule, str) else rule) for name in names):
            yield "op"


def _differ(choice: Choice, other: Choice) -> bool:
    """Whether the two differ at any token count."""
    return any(choice.difference(other, start) for start in _starts(choice, other))


def _starts(*choices: Choice) -> list[int]:
    """Token counts at which another kernel takes its turn."""
    return sorted({piece.start for choice in choices for piece in _pieces(choice)})


def _pieces(choice: Choice) -> list[Piece]:
    """Those of a choice and of its parts."""
    return [piece for each in choice.with_parts() for piece in each.pieces]


def _section(boot: Boot, kind: str) -> KernelSelectSection:
    section: KernelSelectSection = getattr(boot.settings.config.select, kind)
    return section
