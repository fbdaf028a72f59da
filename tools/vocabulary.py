"""The capability vocabulary: what platforms, kernels and verdicts call things, as far as it is declared."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial
from typing import get_args

from first_party import registry, wheels
from generated import Maker, Page, code, table

from llmk.api import AttentionQuery, KernelSpec, LinearQuery, MoEQuery, PlatformFacts, QuantizationSpec, Query, Tier
from llmk.api.cache import DTYPE_BYTES
from llmk.api.specs import Capture
from llmk.kernel.registry import Registered

PAGE = "docs/plugins/capabilities.md"


def pages() -> Iterator[Page]:
    """The vocabulary."""
    blocks: dict[str, Maker] = {
        "features": features_table,
        "architectures": architectures,
        "dtypes": dtypes,
        "layouts": partial(_by_value, "layout", "layout"),
        "weight formats": weight_formats,
        "shapes": shapes,
        "scales": scales,
    }
    yield Page(PAGE, {f"vocabulary.py {name}": maker for name, maker in blocks.items()})


def known() -> list[PlatformFacts]:
    """Every device that a platform of this repository knows without being there."""
    return [facts for platform in registry().platforms for facts in platform.spec.known]


def kernels() -> list[Registered[KernelSpec]]:
    """Every kernel of this repository."""
    return registry().of(KernelSpec)


def features() -> set[str]:
    """Features that a known device has or a kernel needs."""
    return {feature for facts in known() for feature in facts.features} | {
        feature for r in kernels() for feature in r.spec.needs.features
    }


def reason_codes() -> set[str]:
    """The codes of all reasons that the repository's sources give, but for names of queries' fields."""
    found = set()
    for folder in [wheel.folder / "src" for wheel in wheels()]:
        for file in folder.rglob("*.py"):
            found |= set(_codes(ast.walk(ast.parse(file.read_text()))))
    return found - set(shape_names())


def shape_names() -> list[str]:
    """Fields of queries that a refusal may name."""
    base = {field.name for field in fields(Query)}
    asked = (field.name for query in (AttentionQuery, LinearQuery, MoEQuery) for field in fields(query))
    return sorted(set(asked) - base - {"weight_format"})


def _codes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("no", "Reason"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def features_table() -> str:
    """Which platforms publish each feature, and how many kernels need it."""
    rows = []
    for feature in sorted(features()):
        platforms = sorted({facts.name for facts in known() if feature in facts.features})
        needed = sum(feature in r.spec.needs.features for r in kernels())
        rows.append((f"`{feature}`", code(*platforms), needed or "-"))
    return table(("feature", "published by", "kernels that need it"), rows)


def architectures() -> str:
    """Families, each with its known versions and the labels that they have."""
    families: dict[tuple[str, str], dict[str, str]] = {}
    for facts in known():
        version = ".".join(map(str, facts.arch_version))
        families.setdefault((facts.arch_family, facts.name), {})[facts.arch] = version
    rows = [
        (f"`{family}`", f"`{name}`", ", ".join(f"{version} (`{arch}`)" for arch, version in archs.items()))
        for (family, name), archs in families.items()
    ]
    return table(("family", "platform", "versions (`--on PLATFORM/ARCH`)"), rows)


def dtypes() -> str:
    """What dtypes are called, and how wide they are."""
    return table(("dtype", "bytes"), ((f"`{name}`", size) for name, size in DTYPE_BYTES.items()))


def weight_formats() -> str:
    """Formats, the methods that make them, and the kernels that say so by name."""
    methods: dict[str, list[str]] = {"plain": []}
    for r in registry().of(QuantizationSpec):
        methods.setdefault(r.spec.weight_format, []).append(r.spec.id)
    return table(("weight format", "quantization methods"), ((f"`{f}`", code(*ids)) for f, ids in methods.items()))


def shapes() -> str:
    """The fields of queries, as codes."""
    return code(*shape_names())


def scales() -> str:
    """Tiers and kinds of capture, in their order."""
    tiers = " < ".join(f"`{tier.name.lower()}`" for tier in Tier)
    return f"Tiers: {tiers}. Capture: {code(*get_args(Capture))}."


def _by_value(field: str, heading: str) -> str:
    values: dict[tuple[str, str], list[str]] = {}
    for r in kernels():
        if r.kind != "op":
            values.setdefault((r.kind, getattr(r.spec, field)), []).append(r.spec.id)
    rows = [(kind, f"`{value}`", code(*ids)) for (kind, value), ids in sorted(values.items())]
    return table(("kind", heading, "kernels"), rows)
