"""Runs kernels, good ones and broken ones, through their suites: in float32, which is half the cases."""

from __future__ import annotations

from dataclasses import replace

from defects import Defect
from killing import check_good

from llmk.api import KernelSpec, Needs
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases


def registered(id: str, bench: Bench) -> KernelSpec:
    """An installed spec."""
    found = next(one.spec for one in bench.registry.of(KernelSpec) if one.spec.id == id)
    return replace(found, needs=Needs(dtypes=("float32",)))


def check_passes(id: str, bench: Bench) -> None:
    """An installed kernel passes every case."""
    spec = registered(id, bench)
    check_good(spec.kind, spec, bench)


def check_found(good: str, defect: Defect, bench: Bench) -> None:
    """The case that the defect names fails of the good kernel's spec with the defect."""
    fields = defect.provider
    if not isinstance(fields, dict):
        fields = {"implementation": f"{fields.__module__}:{fields.__name__}"}
    spec = replace(registered(good, bench), id="planted.defect", **fields)
    chosen = [case for case in cases(spec.kind, spec, bench) if defect.case in case.name]
    assert chosen, f"{defect.case!r} is no case"
    found = [Result.of(case) for case in chosen]
    assert any(result.outcome == "failed" for result in found), f"{defect.what}, and no case fails: {found}"
