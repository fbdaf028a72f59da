"""Declared needs and the query's shape: every failing reason is reported, not only the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmk.api import OK, KernelSpec, LinearQuery, ModelSpec, Needs, PlatformFacts, Tier, TokenBand, Verdict, match, no
from llmk.api.matching import match_model

BOX = PlatformFacts(
    name="box",
    arch="b2",
    device_type="cpu",
    arch_family="b",
    arch_version=(2, 1),
    features=frozenset({"wide", "tiles"}),
)


def query(*, deterministic: bool = False, dtype: str = "float32") -> LinearQuery:
    return LinearQuery(platform=BOX, site="up", dtype=dtype, deterministic=deterministic, in_features=8, out_features=8)


def spec(needs: Needs = Needs(), supports: Callable[[Any], Verdict] = lambda query: OK) -> KernelSpec:  # noqa: B008
    return KernelSpec(id="a.b", kind="linear", implementation="m:f", tier=Tier.NATIVE, needs=needs, supports=supports)


@pytest.mark.parametrize(
    ("needs", "codes"),
    [
        (Needs(), []),
        (Needs(platforms=("other", "box")), []),
        (Needs(platforms=("other",)), ["platform"]),
        (Needs(features=("wide", "tiles")), []),
        (Needs(features=("wide", "fast", "loud")), ["missing_feature", "missing_feature"]),
        (Needs(min_arch={"b": (2, 1)}), []),
        (Needs(min_arch={"b": (2,), "c": (9,)}), []),
        (Needs(min_arch={"b": (2, 2)}), ["arch"]),
        (Needs(min_arch={"c": (1,)}), ["arch"]),
        (Needs(dtypes=("bfloat16", "float32")), []),
        (Needs(dtypes=("bfloat16",)), ["dtype"]),
        (Needs(packages=("numpy>=1.0",)), []),
        (Needs(packages=("numpy>=999",)), ["package_version"]),
        (Needs(packages=("surely-not-installed",)), ["package_missing"]),
        (Needs(packages=('surely-not-installed; python_version < "3"',)), []),
        (Needs(packages=("not a requirement",)), ["bad_requirement"]),
        (
            Needs(
                platforms=("other",), features=("fast",), min_arch={"b": (3,)}, dtypes=("float16",), packages=("zz9",)
            ),
            ["platform", "missing_feature", "arch", "dtype", "package_missing"],
        ),
    ],
)
def test_needs(needs: Needs, codes: list[str]) -> None:
    verdict = match(spec(needs), query())
    assert [reason.code for reason in verdict.reasons] == codes
    assert verdict.ok == (not codes)


def test_reasons_say_what_is_wanted_and_what_there_is() -> None:
    text = " ".join(map(str, match(spec(Needs(features=("fast",), min_arch={"b": (3, 0)})), query()).reasons))
    assert "wanted fast, found tiles, wide" in text
    assert "wanted b >= 3.0, found b 2.1" in text


def test_reasons_of_needs_and_shape_are_reported_together() -> None:
    verdict = match(spec(Needs(features=("fast",)), lambda query: no("odd", wanted="even")), query())
    assert [reason.code for reason in verdict.reasons] == ["missing_feature", "odd"]


def test_supports_that_raises_or_answers_nonsense_is_a_refusal() -> None:
    def stops(query: LinearQuery) -> Verdict:
        raise SystemExit("no")

    assert "SystemExit: no" in str(match(spec(supports=stops), query()).reasons[0])
    verdict = match(spec(supports=lambda query: True), query())  # type: ignore[arg-type, return-value]
    assert [reason.code for reason in verdict.reasons] == ["supports_raised"]


def test_batch_invariance_is_required_of_kernels() -> None:
    assert match(spec(), query())
    assert [r.code for r in match(spec(), query(deterministic=True)).reasons] == ["not_deterministic"]


@pytest.mark.parametrize(
    ("bands", "found"),
    [
        ((TokenBand(),), None),
        ((TokenBand(5), TokenBand(1, 5, score=2)), None),
        ((TokenBand(1, 65),), "1-64"),
        ((TokenBand(2),), "2-2147483647"),
        ((TokenBand(1, 5), TokenBand(6)), "1-4, 6-2147483647"),
    ],
)
def test_batch_invariance_takes_a_kernel_that_serves_every_token_count(
    bands: tuple[TokenBand, ...], found: str | None
) -> None:
    kernel = replace(spec(), bands=bands, deterministic=True)
    assert match(kernel, query())
    reasons = match(kernel, query(deterministic=True)).reasons
    assert [(r.code, r.found) for r in reasons] == ([] if found is None else [("token_gap", found)])


@pytest.mark.parametrize("declared", [False, True])
def test_batch_invariance_of_model_families(declared: bool) -> None:
    family = ModelSpec(id="a.b", architectures=("A",), implementation="m:f", describe="m:g", deterministic=declared)
    assert match_model(family, "A", deterministic=False)
    assert bool(match_model(family, "A", deterministic=True)) is declared
    assert [r.code for r in match_model(family, "B", deterministic=True).reasons] == ["architecture"]
