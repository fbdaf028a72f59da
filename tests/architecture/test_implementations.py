"""Everything that first-party wheels register follows its contract, on no matter which device it would serve."""

from __future__ import annotations

import pytest

from llmk.api import KernelSpec, Piece
from llmk.config import load
from llmk.kernel.contracts import kind_of
from llmk.kernel.loader import load_object
from llmk.kernel.registry import HOOKS, Registered, Registry
from llmk.planning.op_references import reference_ops

REGISTRY = Registry.discover(load(environ={}).config.plugins)
SPECS = [found for found in REGISTRY.of(object) if found.kind not in ("tuned", "op_contract", "page")]


def test_all_kinds_are_tried() -> None:
    every = {kind for kinds in HOOKS.values() for kind in kinds}
    assert {found.kind for found in SPECS} == every - {"tuned", "logits_processor", "op_contract", "page"}


@pytest.mark.parametrize("found", SPECS, ids=lambda found: f"{found.kind} {found.spec.id}")
def test_an_implementation_follows_its_contract(found: Registered[KernelSpec]) -> None:
    spec, wheel = found.spec, found.plugin.wheel
    kind = kind_of(spec, found.kind)
    try:
        implementation = spec.implementation and load_object(spec.implementation, plugin=wheel, kind=kind, id=spec.id)
        for name in ("prepare", "describe", "tree", "ahead"):
            if location := getattr(spec, name, ""):
                load_object(location, plugin=wheel, kind=name, id=spec.id)
    except Exception as error:
        if isinstance(error.__cause__, ImportError):
            pytest.skip(f"needs {error.__cause__.name}, which is not installed")
        raise
    if found.kind == "op":
        where = (found.plugin.distribution, found.plugin.version, spec.implementation, spec.prepare, "", "")
        piece = Piece(1, 2, spec.id, *where, parts=spec.parts)
        reference_ops(REGISTRY)[spec.op].check(implementation, piece)
