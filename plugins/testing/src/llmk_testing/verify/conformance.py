"""The conformance kit on a platform and on the kernels that would serve there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from llmk.api import KernelSpec, PlatformFacts, PlatformSpec
from llmk.config import load
from llmk.kernel.discovery import CORE
from llmk.kernel.registry import Registered, Registry
from llmk.planning.boot import boot
from llmk_testing.card import Card
from llmk_testing.case import Result
from llmk_testing.check import Check
from llmk_testing.child import Job
from llmk_testing.collect import Options
from llmk_testing.verify.record import Part

_KINDS = ("attention", "linear", "moe", "op")
_SAMPLE = 4
"""Cases of each kernel in a quick verification."""


def check(
    platform: Registered[PlatformSpec],
    facts: PlatformFacts,
    registry: Registry,
    *,
    thorough: bool,
    seed: int,
    timeout: float,
    report: Callable[[Result], None],
) -> Part:
    """All cases of the platform, and of its kernels: a few cases of those that the demo model's plan has, or with
    ``thorough`` all cases of all that its wheel and those that it vouches for have. The core's references are what they
    are compared with, and are left out."""
    used = _kernels_of(platform, facts, registry, thorough=thorough)
    plugins = (platform.plugin, *(kernel.plugin for kernel in used))
    wheels = {plugin.distribution: plugin.version for plugin in plugins}
    card = Card(wheels, thorough, seed)
    checking = Check(card, timeout, report=report)
    if facts.device_type:
        checking.run(Job(platform.plugin.distribution, Options(["platform"], facts.name, thorough, seed)))
    for wheel in {r.plugin.distribution: None for r in used}:
        kinds = [kind for kind in _KINDS if any(r.kind == kind and r.plugin.distribution == wheel for r in used)]
        options = Options(kinds, facts.name, thorough, seed)
        ids = [r.spec.id for r in used if r.plugin.distribution == wheel]
        only = f"^({'|'.join(map(re.escape, ids))})::"
        checking.run(Job(wheel, options, only if thorough else _sampled(wheel, options, only)))
    return _part(card, facts)


def _kernels_of(
    platform: Registered[PlatformSpec], facts: PlatformFacts, registry: Registry, *, thorough: bool
) -> list[Registered[KernelSpec]]:
    """The kernels to check, which run on the platform's torch device."""
    if not facts.device_type:
        return []
    kernels = [kernel for kernel in registry.of(KernelSpec) if kernel.plugin.distribution != CORE]
    if thorough:
        vouched = {platform.plugin.distribution, *platform.spec.vouches}
        return [kernel for kernel in kernels if kernel.plugin.distribution in vouched]
    plan = boot(load({"platform.use": facts.name}, environ={})).plan
    chosen = {piece.id for choice in plan.choices for part in choice.with_parts() for piece in part.pieces}
    return [kernel for kernel in kernels if kernel.spec.id in chosen]


def _sampled(wheel: str, options: Options, only: str) -> str:
    """A pattern of a few cases of each spec, from first to last."""
    listing = Check(Card({}), report=lambda result: None)
    listing.run(Job(wheel, options, only, list_only=True))
    names: dict[str, list[str]] = {}
    for name in listing.listed:
        names.setdefault(name.partition("::")[0], []).append(name)
    few = [each[i * (len(each) - 1) // (_SAMPLE - 1)] for each in names.values() for i in range(_SAMPLE)]
    return f"^({'|'.join(map(re.escape, dict.fromkeys(few)))})$"


def _part(card: Card, facts: PlatformFacts) -> Part:
    part = Part()
    for kind in dict.fromkeys(_names(card.results)):
        found = Counter(r.outcome for r in card.results if _name(r) == kind)
        part.found[kind] = {outcome: found[outcome] for outcome in ("passed", "failed", "skipped")}
    part.problems += [f"{r.spec}::{r.name}: {r.message}" for r in card.results if r.outcome == "failed"]
    skipped = Counter((r.spec, r.message.splitlines()[0]) for r in card.results if r.outcome == "skipped")
    part.notes += [f"skipped {count} of {spec}: {reason}" for (spec, reason), count in skipped.items()]
    if not facts.device_type:
        part.notes.append(f"the kit runs kernels by torch, which can't use {facts.label}: its wheel's own tests do")
    return part


def _names(results: Iterable[Result]) -> Iterable[str]:
    return map(_name, results)


def _name(result: Result) -> str:
    """``platform`` or ``kernels``; the start of a process is the platform's."""
    return "kernels" if result.kind in _KINDS else "platform"
