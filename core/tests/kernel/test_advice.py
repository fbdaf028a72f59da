"""Every line of configuration that a plan advises does what it is said to do."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starts import start
from wheelhouse import Wheelhouse, kernels

from llmk.api import Choice, LlmkError, Plan, Rejection
from llmk.config import load
from llmk.planning.advice import ABLE
from llmk.planning.boot import Boot, advised, boot
from llmk.planning.report import could_serve, render_table

STRANGERS = kernels(
    "odd",
    "linear_kernels",
    'id="odd.fast", tier=Tier.VENDOR',
    'id="odd.slow", tier=Tier.REFERENCE, score=-9',
    'id="odd.packed", tier=Tier.NATIVE, layout="packed"',
    'id="odd.decodes", tier=Tier.VENDOR, layout="mine", bands=(TokenBand(1, 65),)',
    'id="odd.prompts", tier=Tier.NATIVE, layout="packed", bands=(TokenBand(65),)',
    'id="odd.shy", tier=Tier.VENDOR, opt_in="it starts slowly"',
    'id="odd.narrow", tier=Tier.VENDOR, needs=Needs(dtypes=("float64",))',
)
OPS = kernels(
    "ops",
    "ops",
    'id="ops.norm", op="rms_norm", tier=Tier.NATIVE',
    'id="ops.fused", op="add_rms_norm", tier=Tier.VENDOR, parts=("rms_norm",)',
    'id="ops.hollow", op="add_rms_norm", tier=Tier.VENDOR, parts=("no_such_op",)',
)
CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"select.linear.prefer": ["odd.packed", "odd.slow"]},
    {"select.linear.use": "reference.linear"},
    {"select.linear.use": {"up": "odd.packed"}, "select.op.use": {"norm": "reference.rms_norm"}},
    {"plugins.trust": ["odd-wheel"], "select.linear.avoid": ["odd.shy"]},
]


def lines_of(hint: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line that a hint names, and the flags that it stands for."""
    prefix = "to choose it: "
    assert hint.startswith(prefix), hint
    for line in hint.removeprefix(prefix).split(", or "):
        section, _, assignment = line.partition("] ")
        data = tomllib.loads(assignment)
        yield line, {f"{section.removeprefix('[')}.{key}": value for key, value in data.items()}


def turned_down(plan: Plan) -> Iterator[tuple[Choice, Rejection]]:
    for choice in plan.all_choices():
        for out in choice.rejected:
            if len(out.reasons) == 1 and out.reasons[0].code in ABLE:
                yield choice, out


def check(booted: Boot, again: Callable[[dict[str, Any]], Plan]) -> int:
    """Returns how many lines were followed."""
    plans: dict[str, Plan | None] = {}

    def plan_with(flags: dict[str, Any]) -> Plan | None:
        key = json.dumps(flags, sort_keys=True)
        if key not in plans:
            try:
                plans[key] = again(flags)
            except LlmkError:
                plans[key] = None
        return plans[key]

    def chooses(plan: Plan | None, choice: Choice, id: str) -> bool:
        found = [] if plan is None else plan.all_choices()
        return any((c.kind, c.site) == (choice.kind, choice.site) and id in {p.id for p in c.pieces} for c in found)

    for choice, out in turned_down(booted.plan):
        hint = out.reasons[0].hint
        for line, flags in lines_of(hint) if hint else ():
            assert chooses(plan_with(flags), choice, out.id), f"{line} does not choose {out.id} at {choice.site}"
        if not hint:
            wish = {f"select.{choice.kind}.prefer": [out.id]}
            assert not chooses(plan_with(wish), choice, out.id), f"no hint says that {wish} would choose {out.id}"
    return len(plans)


@pytest.mark.slow
@pytest.mark.parametrize("flags", CONFIGURATIONS, ids=str)
def test_advice_does_what_it_says_for_strangers_kernels(house: Wheelhouse, model: Path, flags: dict[str, Any]) -> None:
    house.install("odd", STRANGERS)
    house.install("ops", OPS)

    def boot_with(more: dict[str, Any]) -> Boot:
        return start(house, model, **{name.replace(".", "__"): value for name, value in {**flags, **more}.items()})

    booted = boot_with({})
    for line in could_serve(booted.plan):
        assert "; to choose it: [" in line
    assert check(advised(booted), lambda more: boot_with(more).plan) > 5


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["cpu/x86_64-avx512", "cuda/h100"])
def test_advice_does_what_it_says_for_all_that_is_installed(machine: str) -> None:
    def boot_with(more: dict[str, Any]) -> Boot:
        settings = load({"platform.measurements": "none", **more}, environ={})
        return boot(settings, on=machine, verify=False)

    assert check(advised(boot_with({})), lambda more: boot_with(more).plan) > 3


def test_a_kernel_for_some_token_counts_is_shown_to_have_a_gap_and_is_not_advised(
    house: Wheelhouse, model: Path
) -> None:
    house.install("odd", STRANGERS)
    table = render_table(start(house, model).plan)
    (line,) = [line for line in table.splitlines() if "odd.decodes" in line]
    assert line == (
        "left out: odd.decodes (odd-wheel) at up, head; token gap: wanted token counts from 65, "
        "found no kernel with layout 'mine'"
    )
