"""The feature matrix, a section per platform: its devices, and which kernels would serve on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from first_party import registry
from generated import Page, code, table

from llmk.api import KernelSpec, PlatformFacts, Tier, TokenBand
from llmk.api.matching import check_needs

KINDS = {"attention": "attention", "linear": "linear", "moe": "mixtures of experts", "op": "ops"}
END = TokenBand().stop
UNSERVED = "-"


def pages() -> Iterator[Page]:
    """The matrix."""
    yield Page("docs/plugins/matrix.md", {"feature_matrix.py": render})


def render() -> str:
    """A section for each platform, then the references, which serve on all of them."""
    sections = [_platform(platform.spec.name, machines(platform.spec.known)) for platform in registry().platforms]
    return "\n\n".join((*sections, "## On every platform: references", *map(_references, KINDS)))


def machines(known: tuple[PlatformFacts, ...]) -> dict[str, list[PlatformFacts]]:
    """Known devices by architecture: kernels are matched by no more than that."""
    found: dict[str, list[PlatformFacts]] = {}
    for facts in known:
        found.setdefault(facts.arch, []).append(facts)
    return found


def kernels(kind: str, *, references: bool) -> list[KernelSpec]:
    """Kernels of a kind: the references, or all others."""
    specs = (r.spec for r in registry().kernels(kind))
    return [spec for spec in specs if (spec.tier is Tier.REFERENCE) == references]


def _platform(name: str, devices: dict[str, list[PlatformFacts]]) -> str:
    parts = [f"## `{name}`", _devices(name, devices)]
    if not any(facts.device_type for facts, *_ in devices.values()):
        link = "[executor](hooks/executors.md)"
        return "\n\n".join([*parts, f"torch can't use it, so no kernel serves: an {link} computes all sites."])
    for kind, title in KINDS.items():
        parts += [f"### `{name}`: {title}", _served(kind, [facts for facts, *_ in devices.values()])]
    return "\n\n".join(parts)


def _devices(name: str, machines: dict[str, list[PlatformFacts]]) -> str:
    rows = []
    for arch, devices in machines.items():
        facts = devices[0]
        version = f"`{facts.arch_family}` {'.'.join(map(str, facts.arch_version))}"
        names = ", ".join(known.device_name for known in devices)
        rows.append((f"`{name}/{arch}`", version, names, code(*facts.dtypes), code(*sorted(facts.features))))
    return table(("device", "family, version", "known as", "dtypes", "features"), rows)


def _served(kind: str, devices: list[PlatformFacts]) -> str:
    """Kernels that would serve on some device, and what is left to the references."""
    rows = []
    for spec in kernels(kind, references=False):
        cells = [_cell(spec, facts) for facts in devices]
        if set(cells) != {UNSERVED}:
            rows.append((*_declared(kind, spec), code(*spec.needs.packages), *cells))
    if not rows:
        return "References only."
    shown = table((*_headings(kind), "packages", *(f"`{facts.arch}`" for facts in devices)), rows)
    served = {row[1] for row in rows}
    alone = dict.fromkeys(f"`{spec.op}`" for spec in kernels(kind, references=True) if f"`{spec.op}`" not in served)
    return f"{shown}\n\nBy references only: {', '.join(alone)}." if kind == "op" and alone else shown


def _references(kind: str) -> str:
    rows = [_declared(kind, spec) for spec in kernels(kind, references=True)]
    return f"### References: {KINDS[kind]}\n\n{table(_headings(kind), rows)}"


def _headings(kind: str) -> tuple[str, ...]:
    subject = ("op",) if kind == "op" else ()
    return ("kernel", *subject, "tier", "tokens", "capture", "properties", "parts" if kind == "op" else "layout")


def _declared(kind: str, spec: KernelSpec) -> tuple[str, ...]:
    properties = [name for name in ("deterministic", "jit", "opt_in") if getattr(spec, name)]
    subject = (f"`{spec.op}`",) if kind == "op" else ()
    last = code(*spec.parts) if kind == "op" else f"`{spec.layout}`"
    tier = spec.tier.name.lower()
    return (f"`{spec.id}`", *subject, tier, _bands(spec), f"`{spec.capture}`", ", ".join(properties) or "-", last)


def _bands(spec: KernelSpec) -> str:
    if len(spec.bands) == 1 and spec.bands[0].stop == END:
        return "all"
    return ", ".join(
        f"{band.start}{'+' if band.stop == END else f'-{band.stop - 1}'}"
        + (f" (score {band.score})" if band.score else "")
        for band in spec.bands
    )


def _cell(spec: KernelSpec, facts: PlatformFacts) -> str:
    """The dtypes in which it would serve. Packages can be installed, so they don't count."""
    needs = replace(spec.needs, packages=())
    serving = [dtype for dtype in facts.dtypes if check_needs(needs, facts, dtype)]
    if not serving:
        return UNSERVED
    return "yes" if len(serving) == len(facts.dtypes) else ", ".join(serving)
