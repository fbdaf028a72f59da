"""The feature matrix: what every kernel declares, and on which known device of each platform it would serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from first_party import registry
from generated import Page, code, table

from llmk.api import KernelSpec, PlatformFacts, TokenBand
from llmk.api.matching import check_needs
from llmk.kernel.registry import Registered

KINDS = {"attention": "Attention", "linear": "Linear", "moe": "Mixtures of experts", "op": "Ops"}
END = TokenBand().stop


def pages() -> Iterator[Page]:
    """The matrix."""
    yield Page("docs/plugins/matrix.md", {"feature_matrix.py": render})


def render() -> str:
    """Known devices, then two tables for each kind of kernel."""
    parts = ["## Devices", _devices()]
    for kind, title in KINDS.items():
        kernels = registry().kernels(kind)
        parts += [f"## {title}: what is declared", _declared(kind, kernels)]
        parts += [f"## {title}: where it would serve", _served(kernels)]
    return "\n\n".join(parts)


def machines() -> dict[str, list[PlatformFacts]]:
    """Known devices of all platforms, by architecture: kernels are matched by no more than that."""
    found: dict[str, list[PlatformFacts]] = {}
    for platform in registry().platforms:
        for facts in platform.spec.known:
            found.setdefault(facts.label, []).append(facts)
    return found


def _devices() -> str:
    rows = []
    for label, (facts, *others) in machines().items():
        names = ", ".join(known.device_name for known in (facts, *others))
        arch = f"`{facts.arch_family}` {'.'.join(map(str, facts.arch_version))}"
        rows.append((f"`{label}`", arch, names, code(*facts.dtypes), code(*sorted(facts.features))))
    return table(("device", "family, version", "known as", "dtypes", "features"), rows)


def _declared(kind: str, kernels: list[Registered[KernelSpec]]) -> str:
    rows = []
    for r in kernels:
        spec = r.spec
        marks = [name for name in ("deterministic", "jit", "only_if_asked") if getattr(spec, name)]
        subject = [f"`{spec.op}`"] if kind == "op" else []
        last = code(*spec.parts) if kind == "op" else f"`{spec.layout}`"
        row = [f"`{spec.id}`", *subject, spec.tier.name.lower(), _bands(spec), f"`{spec.capture}`", ", ".join(marks)]
        rows.append([*row, _needs(spec), last])
    subject = ["op"] if kind == "op" else []
    headings = ["kernel", *subject, "tier", "tokens", "capture", "is", "needs", "parts" if kind == "op" else "layout"]
    return table(headings, rows)


def _bands(spec: KernelSpec) -> str:
    if len(spec.bands) == 1 and spec.bands[0].stop == END:
        return "all"
    return ", ".join(
        f"{band.start}{'+' if band.stop == END else f'-{band.stop - 1}'}"
        + (f" (score {band.score})" if band.score else "")
        for band in spec.bands
    )


def _needs(spec: KernelSpec) -> str:
    needs = spec.needs
    words = [f"platform {' or '.join(needs.platforms)}"] if needs.platforms else []
    words += [f"feature {feature}" for feature in needs.features]
    words += [f"arch {' or '.join(map(str, needs.archs))}"] if needs.archs else []
    words += [f"dtype {' or '.join(needs.dtypes)}"] if needs.dtypes else []
    return "; ".join([*words, *(f"package {package}" for package in needs.packages)]) or "-"


def _served(kernels: list[Registered[KernelSpec]]) -> str:
    """Kernels that serve alike share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for r in kernels:
        rows.setdefault(tuple(_cell(r.spec, facts) for facts, *_ in machines().values()), []).append(r.spec.id)
    headings = ["kernel", *(f"`{label}`" for label in machines())]
    return table(headings, ((code(*ids), *cells) for cells, ids in rows.items()))


def _cell(spec: KernelSpec, facts: PlatformFacts) -> str:
    """The dtypes in which it would serve, or the first reason why it wouldn't. Packages can be installed, so they don't
    count."""
    needs = replace(spec.needs, packages=())
    verdicts = {dtype: check_needs(needs, facts, dtype) for dtype in facts.dtypes}
    if serving := [dtype for dtype, verdict in verdicts.items() if verdict]:
        return "yes" if len(serving) == len(verdicts) else ", ".join(serving)
    reason = verdicts[facts.dtypes[0]].reasons[0]
    return f"no: {reason.code.replace('_', ' ')} {reason.wanted}"
