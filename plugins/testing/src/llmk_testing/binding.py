"""Loads the implementations of ops, composite ops with their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmk.api import KernelSpec, Tier
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk_testing.case import Skip


def bind(registry: Registry, spec: KernelSpec, given: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The implementation of ``spec``. Parts that are not ``given`` are the reference's.

    Raises:
        Skip: no installed plugin provides a part.
    """
    implementation: Callable[..., Any] = load_object(spec.implementation, plugin=spec.id)
    if not spec.parts:
        return implementation
    parts = {name: given.get(name) or bind(registry, oracle(registry, name), given) for name in spec.parts}
    bound: Callable[..., Any] = implementation(parts)
    return bound


def oracle(registry: Registry, op: str) -> KernelSpec:
    """The oracle of an op: the reference kernel of this op.

    Raises:
        Skip: there is none.
    """
    specs = [kernel.spec for kernel in registry.kernels("op") if kernel.spec.op == op]
    references = [spec for spec in specs if spec.tier is Tier.REFERENCE]
    if not references:
        raise Skip(f"no installed plugin provides a reference for the op {op!r}")
    return max(references, key=lambda spec: spec.score)
