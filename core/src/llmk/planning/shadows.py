"""Shadows of ``[select]``: kernels that run in addition to the chosen ones and are compared with them.

They are taken from a second plan, in which shadows are treated as pins. So an op over attention, or one that contains a
GEMM, is compared with the op that would run if the shadow were chosen at that site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmk.api import Choice, Piece, Reason, SelectionError, Shadow, Tier
from llmk.planning.candidates import able, is_able
from llmk.planning.resolver import resolve
from llmk.planning.tables import render_rows

if TYPE_CHECKING:
    from llmk.api import Plan
    from llmk.config.schema import KernelSelectSection
    from llmk.planning.boot import Boot

REFERENCE = "reference"
"""The value of ``shadow`` that means the best kernel of the reference tier."""
_KINDS = ("attention", "linear", "moe", "op")

Table = dict[str, str]


def shadowed(boot: Boot) -> Boot:
    """``boot`` with the shadows of its configuration in the plan.

    A shadow for a whole kind is left out at sites that it doesn't support, with a warning. Raises SelectionError, with
    the reasons, if it supports no site, or not the site for which it is named.
    """
    sections = {kind: section for kind in _KINDS if (section := _section(boot, kind)).shadow}
    if not sections or boot.plan.shadows:
        return boot
    second, warnings = _second_plan(boot, sections)
    found: list[Shadow] = []
    idle = set(sections)
    recurrent = {site.site for site in boot.facts.recurrent}
    contracts = boot.registry.contracts
    for choice in boot.plan.choices:
        if choice.query is None:
            continue
        other = second.choice(choice.kind, choice.site)
        kinds = set(_kinds(boot, sections, other))
        pairs = [(choice, other), *((boot.plan.choice(*at), second.choice(*at)) for at in _sites(boot, choice))]
        if not kinds or not any(pair for _, pair in _differences(pairs)):
            continue
        if choice.site in recurrent:
            warnings.append(f"op site {choice.site} has no shadow: it changes recurrent state in place")
            continue
        idle -= kinds
        rate = max(sections[kind].shadow_rate for kind in kinds)
        found.append(Shadow(other, rate, contracts.get(choice.op)))
    warnings += [f"[select.{kind}] shadow compares nothing: it is what was chosen" for kind in idle]
    pieces = [piece for shadow in found for piece in _pieces(shadow.choice)]
    wheels = dict(boot.plan.wheels) | {piece.distribution: piece.version for piece in pieces}
    plan = replace(
        boot.plan,
        shadows=tuple(found),
        wheels=tuple(sorted(wheels.items())),
        warnings=(*boot.plan.warnings, *warnings),
    )
    return replace(boot, plan=plan)


def render_shadows(boot: Boot, width: int = 0) -> str:
    """A table of chosen kernels and their shadows, by the first token count from which they differ."""
    rows = []
    for shadow in boot.plan.shadows:
        at = (shadow.choice.kind, shadow.choice.site)
        sites = [at, *_sites(boot, shadow.choice)]
        pairs = [(boot.plan.choice(*site), found.choice) for site in sites if (found := boot.plan.shadow(*site))]
        wheels = {piece.id: f"{piece.distribution} {piece.version}" for _, other in pairs for piece in _pieces(other)}
        differences = _differences(pairs)
        for start, pair in differences:
            tokens = f"{start}-" if len(differences) > 1 else ""
            kernel, other = pair or ("", "the same")
            rows.append([*at, tokens, kernel, other, wheels.get(other, ""), f"{shadow.rate:.0%}"])
    return "\n" + render_rows(("kind", "site", "tokens", "kernel", "shadow", "wheel", "of steps"), rows, width)


def _second_plan(boot: Boot, sections: Mapping[str, KernelSelectSection]) -> tuple[Plan, list[str]]:
    """The plan that would result if shadows were pins, and a warning for each site that a shadow of the whole kind
    doesn't support."""
    excluded: dict[str, Reason] = {}
    skipped: list[str] = []
    select = boot.settings.config.select
    for kind, section in sections.items():
        pins = _op_pins(boot, section, excluded, skipped) if kind == "op" else _pins(boot, kind, section, skipped)
        select = select.model_copy(update={kind: section.model_copy(update={"use": pins})})
    config = boot.settings.config.model_copy(update={"select": select})
    given = boot.registry, config, boot.checkpoint, boot.facts, boot.platform_facts, boot.plan.quantization
    try:
        return resolve(*given, platform_id=boot.plan.platform_id, excluded=excluded), skipped
    except SelectionError as error:
        message, hint = (text.replace("] use", "] shadow") for text in (error.message, error.hint))
        raise SelectionError(f"a shadow can't be used: {message}", reasons=error.reasons, hint=hint) from error


def _pins(boot: Boot, kind: str, section: KernelSelectSection, skipped: list[str]) -> Table:
    """The pins for a kind other than ops: those of the configuration, replaced by shadows where there are any."""
    sites = {choice.site: choice for choice in boot.plan.choices if choice.kind == kind}
    use = dict.fromkeys(sites, section.use) if isinstance(section.use, str) else section.use
    if isinstance(section.shadow, str):
        rule = _where_able(boot, section.shadow, list(sites.values()), skipped)
    else:
        rule = {
            s: _reference(boot, sites[s]) if id == REFERENCE and s in sites else id for s, id in section.shadow.items()
        }
    return {site: id for site, id in (use | rule).items() if id}


def _where_able(boot: Boot, id: str, choices: Sequence[Choice], skipped: list[str]) -> Table:
    """The sites of those ``choices`` that ``id``, a shadow for all of them, supports. Raises SelectionError if it
    supports none."""
    if id != REFERENCE and all(id not in _ids(choice) for choice in choices):
        return {choice.site: id for choice in choices}  # unknown id: the resolver raises the error
    found: Table = {}
    out: dict[str, list[Reason]] = {}
    for choice in choices:
        specs = able(boot.registry, choice)
        if id == REFERENCE and specs and specs[0].tier is Tier.REFERENCE:
            found[choice.site] = specs[0].id
        elif id in _able_ids(choice):
            found[choice.site] = id
        else:
            out[choice.site] = [r for other in choice.rejected if id in (other.id, REFERENCE) for r in other.reasons]
    kind = choices[0].kind if choices else ""
    if not found:
        reasons = [reason.about(site) for site, whys in out.items() for reason in whys]
        message = f"a shadow can't be used: {id} can serve no {kind} site of this model"
        hint = f"name another in [select.{kind}] shadow; `llmk explain --verbose` lists them"
        raise SelectionError(message, reasons=list(dict.fromkeys(reasons)), hint=hint)
    for site, whys in out.items():
        why = "no reference serves it" if id == REFERENCE else "; ".join(map(str, whys))
        skipped.append(f"{kind} site {site} has no shadow: {id} can't serve it: {why}")
    return found


def _ids(choice: Choice) -> set[str]:
    return {*(piece.id for piece in choice.pieces), *(out.id for out in choice.rejected)}


def _able_ids(choice: Choice) -> set[str]:
    """Ids of all kernels that support a site, including references."""
    return {*(piece.id for piece in choice.pieces), *(out.id for out in choice.rejected if is_able(out))}


def _reference(boot: Boot, choice: Choice) -> str:
    specs = able(boot.registry, choice)
    if specs and specs[0].tier is Tier.REFERENCE:
        return specs[0].id
    reasons = [reason.about(out.id) for out in choice.rejected for reason in out.reasons]
    raise SelectionError(f"no reference serves {choice.kind} site {choice.site!r}, to be its shadow", reasons=reasons)


def _op_pins(boot: Boot, section: KernelSelectSection, excluded: dict[str, Reason], skipped: list[str]) -> str | Table:
    """The pins for ops. A reference must have reference parts too, so kernels of other tiers are ``excluded`` for all
    ops that have a reference."""
    specs = [kernel.spec for kernel in boot.registry.kernels("op")]
    known = {*(choice.site for choice in boot.plan.all_choices()), *(spec.op for spec in specs)}
    unknown = [] if isinstance(section.shadow, str) else [name for name in section.shadow if name not in known]
    if unknown:
        sites = ", ".join(choice.site for choice in boot.plan.choices if choice.kind == "op")
        message = f"[select.op] shadow names {unknown[0]}, which this model does not have"
        raise SelectionError(message, hint=f"op sites: {sites}")
    named = {section.shadow} if isinstance(section.shadow, str) else set(section.shadow.values())
    if named == {REFERENCE}:
        have = {spec.op for spec in specs if spec.tier is Tier.REFERENCE}
        others = [spec.id for spec in specs if spec.op in have and spec.tier is not Tier.REFERENCE]
        excluded |= dict.fromkeys(others, Reason("not_reference", found="the shadow is to be a reference"))
        return ""
    if REFERENCE in named:  # kernels that are excluded for one op would be missing for another
        hint = "name the references by their ids too: reference.rms_norm"
        raise SelectionError("[select.op] shadow names both ids and 'reference'", hint=hint)
    ops = {spec.id: spec.op for spec in specs}
    use, rule = ({ops.get(r, r): r} if isinstance(r, str) else r for r in (section.use, section.shadow))
    pins = dict(use)
    for target, id in rule.items():
        of_op = [choice for choice in boot.plan.all_choices() if id and choice.op == target]
        found = _where_able(boot, id, of_op, skipped) if of_op else {}
        pins |= found if len(found) < len(of_op) else {target: id}
    return {target: id for target, id in pins.items() if id}


def _kinds(boot: Boot, sections: Mapping[str, KernelSelectSection], choice: Choice) -> Iterator[str]:
    """The kinds whose ``shadow`` settings apply at a site."""
    for kind, site in _sites(boot, choice) if choice.kind == "op" else [(choice.kind, choice.site)]:
        if kind in sections and (isinstance(rule := sections[kind].shadow, str) or site in rule):
            yield kind
    if choice.kind == "op" and "op" in sections:
        rule = sections["op"].shadow
        names = [{part.site, part.op, *(piece.id for piece in part.pieces)} for part in choice.with_parts()]
        if rule == REFERENCE or any(not name.isdisjoint([rule] if isinstance(rule, str) else rule) for name in names):
            yield "op"


def _sites(boot: Boot, choice: Choice) -> list[tuple[str, str]]:
    """Kinds and names of the attention and linear sites that an op uses."""
    ops = [op for op in boot.facts.ops if choice.kind == "op" and op.site == choice.site]
    pairs = [pair for op in ops for pair in (("attention", op.attention), ("linear", op.linear))]
    return [(kind, site) for kind, site in pairs if site]


def _differences(pairs: list[tuple[Choice, Choice]]) -> list[tuple[int, tuple[str, str] | None]]:
    """The ids in which the choices of ``pairs`` first differ, by the token count from which they do."""
    found: list[tuple[int, tuple[str, str] | None]] = []
    for start in sorted({piece.start for pair in pairs for choice in pair for piece in _pieces(choice)}):
        difference = next(filter(None, (choice.difference(other, start) for choice, other in pairs)), None)
        if not found or found[-1][1] != difference:
            found.append((start, difference))
    return found


def _pieces(choice: Choice) -> list[Piece]:
    """The pieces of a choice and of its parts."""
    return [piece for each in choice.with_parts() for piece in each.pieces]


def _section(boot: Boot, kind: str) -> KernelSelectSection:
    section: KernelSelectSection = getattr(boot.settings.config.select, kind)
    return section
