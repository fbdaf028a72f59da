"""Implementations of ops, composite ones with their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmk.api import KernelSpec, Tier
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk_testing.case import Skip


def bind(registry: Registry, spec: KernelSpec, given: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What ``spec`` implements. Of its parts, those that are not ``given`` are the reference's.

    Raises:
        Skip: where nobody who is installed has a part.
    """
    implementation: Callable[..., Any] = load_object(spec.implementation, plugin=spec.id)
    if not spec.parts:
        return implementation
    parts = {name: given.get(name) or bind(registry, oracle(registry, name), given) for name in spec.parts}
    bound: Callable[..., Any] = implementation(parts)
    return bound


def oracle(registry: Registry, op: str) -> KernelSpec:
    """What says how an op is right: the reference of its name.

    Raises:
        Skip: where there is none.
    """
    specs = [kernel.spec for kernel in registry.kernels("op") if kernel.spec.op == op]
    references = [spec for spec in specs if spec.tier is Tier.REFERENCE]
    if not references:
        raise Skip(f"nothing that is installed is a reference for the op {op!r}")
    return max(references, key=lambda spec: spec.score)
