"""Chooses the platform: the highest-ranked usable one, the one that the config names, or another machine's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llmk.api import Host, PlatformFacts, PlatformSpec, Probe, SelectionError
from llmk.api.matching import evaluate
from llmk.kernel.first_party import how_to_install
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watched, watching
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config

Found = tuple[Registered[PlatformSpec], PlatformFacts]


def probe_platforms(
    registry: Registry, host: Host | None = None, options: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> list[tuple[Registered[PlatformSpec], Probe]]:
    """Every platform with the result of its probe on this machine. A probe that raises counts as not usable.
    ``options`` are the plugins' sections of the configuration, by their names."""
    here, found = host or Host(), []
    with watching():
        for platform in registry.platforms:
            own = replace(here, options=options.get(platform.plugin.name, {}))
            found.append((platform, _probe(platform, own)))
    return found


def _probe(platform: Registered[PlatformSpec], host: Host) -> Probe:
    plugin = platform.plugin
    with watched(f"the probe of {platform.spec.id} ({plugin.wheel})", plugin.way_out):
        result = evaluate(platform.spec.probe, host, Probe)
    return result if isinstance(result, Probe) else Probe(result)


def choose_platform(registry: Registry, config: Config, host: Host | None = None, *, on: str | None = None) -> Found:
    """The platform to use and its facts. ``on`` (``name``, ``name/arch``, or ``name/`` and words of the device's name)
    chooses a known machine instead of this one.

    Raises SelectionError with the reasons of every platform if none is usable.
    """
    probed = probe_platforms(registry, host, config.plugin)
    if on:
        return _known_machine(probed, on)
    use = config.platform.use
    if use and not any(use in (p.spec.name, p.spec.id) for p, _ in probed):
        hint = how_to_install(use) or f"installed: {', '.join(p.spec.id for p, _ in probed) or 'none'}"
        raise SelectionError(f"no installed wheel provides the platform {use!r}", hint=hint)
    claims = [(p, probe.verdict) for p, probe in probed]
    rules = config.select.model.model_copy(update={"use": use, "prefer": (), "avoid": ()})
    chosen, _ = elect("[platform]", rules, claims, rank=lambda spec: spec.rank)
    facts = next((probe.facts for p, probe in probed if p is chosen), None)
    if chosen is None or facts is None:
        raise SelectionError(
            "no installed platform is usable here" if probed else "no platform is installed",
            reasons=[reason.about(p.spec.id) for p, probe in probed for reason in probe.verdict.reasons],
            hint="install the wheel of a backend for this machine, for example: pip install llmk-backends-cpu",
        )
    if not use:
        registry.notices += _passed_over(probed, chosen.spec)
    return chosen, facts


def _passed_over(probed: Sequence[tuple[Registered[PlatformSpec], Probe]], chosen: PlatformSpec) -> Iterator[str]:
    """A warning for each platform that would have been chosen, had its devices been usable."""
    for platform, probe in probed:
        if not probe.verdict and probe.unused and platform.spec.rank > chosen.rank:
            codes = "; ".join(reason.code.replace("_", " ") for reason in probe.verdict.reasons)
            named = f"platform {platform.spec.name} ({platform.plugin.wheel})"
            yield f"not used: {counted(probe.unused)}; {named} is not usable here: {codes} (llmk doctor says more)"


def counted(names: Sequence[str]) -> str:
    """Names of devices, each once, with how many there are."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())


def _known_machine(probed: Sequence[tuple[Registered[PlatformSpec], Probe]], on: str) -> Found:
    known: list[Found] = []
    for platform, probe in probed:
        known += [(platform, facts) for facts in (*([probe.facts] if probe.facts else []), *platform.spec.known)]
    name, _, device = on.lower().partition("/")
    ours = [found for found in known if found[1].name == name]
    for found in ours:
        if device in ("", found[1].arch.lower()):
            return found
    for found in ours:
        if _words(device) <= _words(found[1].device_name):
            return found
    if not ours and (hint := how_to_install(name)):
        raise SelectionError(f"no installed wheel provides the platform {name!r}", hint=hint)
    near = _near(device, ours) if ours else _elsewhere(on.lower(), known)
    raise SelectionError(f"no installed platform knows the machine {on!r}", hint=f"known: {', '.join(near) or 'none'}")


def _near(device: str, known: Sequence[Found]) -> Iterable[str]:
    """The machines of a platform whose names are closest to ``device``, then all of its architectures."""
    names = {word: f"{facts.name}/{word}" for _, facts in known for word in (facts.arch, *_words(facts.device_name))}
    close = (names[word] for word in get_close_matches(device, sorted(names), n=3))
    return dict.fromkeys([*close, *sorted({facts.label for _, facts in known})])


def _elsewhere(device: str, known: Sequence[Found]) -> Iterable[str]:
    """The machines that ``device`` names without their platform; where there is none, all platforms."""
    found = {f"{facts.name}/{device}" for _, facts in known if device in {facts.arch, *_words(facts.device_name)}}
    return sorted(found or {facts.name for _, facts in known})


def _words(text: str) -> set[str]:
    return set(text.lower().replace("-", " ").split())
