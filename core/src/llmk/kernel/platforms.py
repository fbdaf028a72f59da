"""Which platform is used: the best that is usable here, the one that the config names, or one that is not here at all."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmk.api import Host, PlatformFacts, PlatformSpec, Probe, SelectionError, no
from llmk.kernel.discovery import describe
from llmk.kernel.matching import located
from llmk.kernel.registry import Registered, Registry

if TYPE_CHECKING:
    from llmk.config import Config

Found = tuple[Registered[PlatformSpec], PlatformFacts]
Probed = tuple[Registered[PlatformSpec], Probe]


def probe_platforms(registry: Registry, host: Host | None = None) -> list[Probed]:
    """Every platform's answer about this machine, highest rank first. A probe that raises is an answer too."""
    ranked = sorted(registry.platforms, key=lambda p: -p.spec.rank)
    return [(platform, _probe(platform.spec, host or Host())) for platform in ranked]


def choose_platform(registry: Registry, config: Config, host: Host | None = None, *, on: str | None = None) -> Found:
    """The platform to use and its facts; ``on`` (``name`` or ``name/arch``) plans for a machine that need not be here.

    Raises SelectionError that tells of every platform why it is not usable.
    """
    probed = probe_platforms(registry, host)
    if on:
        return _known(probed, on)
    wanted = config.platform.use
    named = [(p, probe) for p, probe in probed if not wanted or wanted in (p.spec.name, p.spec.id)]
    usable = [(p, probe.facts) for p, probe in named if probe.verdict and probe.facts is not None]
    if not usable:
        raise _none_usable(probed, named, wanted)
    best = [p for p, _ in usable if p.spec.rank == usable[0][0].spec.rank]
    if len(best) > 1:
        names = " and ".join(f"{p.spec.id} of {p.plugin.wheel}" for p in best)
        raise SelectionError(f"platforms {names} tie", hint=f'settle it with [platform] use = "{best[0].spec.id}"')
    platform, facts = usable[0]
    assert facts is not None
    return platform, facts


def _probe(spec: PlatformSpec, host: Host) -> Probe:
    try:
        answer = spec.probe(host)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Probe(no("probe_raised", found=describe(error)))
    return answer if isinstance(answer, Probe) else Probe(no("probe_raised", wanted="a Probe", found=answer))


def _known(probed: Sequence[Probed], on: str) -> Found:
    known: dict[str, Found] = {}
    for platform, probe in probed:
        for facts in ((probe.facts,) if probe.facts else ()) + platform.spec.known:
            known.setdefault(facts.label, (platform, facts))
            known.setdefault(facts.name, (platform, facts))
    if on in known:
        return known[on]
    labels = [label for label in known if "/" in label]
    close = get_close_matches(on, labels, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(labels) or 'none'}"
    raise SelectionError(f"no installed platform knows the machine {on!r}", hint=hint)


def _none_usable(probed: Sequence[Probed], named: Sequence[Probed], wanted: str) -> SelectionError:
    hint = "install the wheel of a backend for this machine, for example: pip install llmk-backends-cpu"
    if wanted and not named:
        names = ", ".join(p.spec.name for p, _ in probed) or "none"
        return SelectionError(f"no platform is named {wanted!r} (installed: {names})", hint=hint)
    reasons = [reason for p, probe in named for reason in located(probe.verdict.reasons, p.spec.id)]
    if wanted:
        return SelectionError(f"platform {wanted!r} is asked for but not usable here", reasons=reasons, hint=hint)
    what = "no installed platform is usable here" if probed else "no platform is installed"
    return SelectionError(what, reasons=reasons, hint=hint)
