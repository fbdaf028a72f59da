"""Declared needs and the query's shape: every failing reason is reported, not only the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from llmk.api import (
    FIRST_FIELDS,
    OK,
    ArchRange,
    AttentionQuery,
    KernelSpec,
    LinearQuery,
    ModelSpec,
    MoEQuery,
    Needs,
    OpQuery,
    PlatformFacts,
    Query,
    Tier,
    TokenBand,
    Verdict,
    match,
    no,
)
from llmk.api.matching import check_needs, facts_to_know, match_model, neutral_values

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
        (Needs(archs=(ArchRange("b", (2, 1)),)), []),
        (Needs(archs=(ArchRange("b", (2,)), ArchRange("c", (9,)))), []),
        (Needs(archs=(ArchRange("b", (2, 2)),)), ["arch"]),
        (Needs(archs=(ArchRange("c", (1,)),)), ["arch"]),
        (Needs(archs=(ArchRange("b", (2,), (3,)),)), []),
        (Needs(archs=(ArchRange("b", (1,), (2, 1)),)), ["arch"]),
        (Needs(archs=(ArchRange("b", stop=(2, 2)),)), []),
        (Needs(archs=(ArchRange("b"),)), []),
        (Needs(archs=("b2",)), []),
        (Needs(archs=("b1", "b2")), []),
        (Needs(archs=("b1", ArchRange("b", (3,)))), ["arch"]),
        (Needs(archs=("b",)), ["arch"]),
        (Needs(dtypes=("bfloat16", "float32")), []),
        (Needs(dtypes=("bfloat16",)), ["dtype"]),
        (Needs(packages=("numpy>=1.0",)), []),
        (Needs(packages=("numpy>=999",)), ["package_version"]),
        (Needs(packages=("surely-not-installed",)), ["package_missing"]),
        (Needs(packages=('surely-not-installed; python_version < "3"',)), []),
        (Needs(packages=("not a requirement",)), ["bad_requirement"]),
        (
            Needs(
                platforms=("other",),
                features=("fast",),
                archs=(ArchRange("b", (3,)),),
                dtypes=("float16",),
                packages=("zz9",),
            ),
            ["platform", "missing_feature", "arch", "dtype", "package_missing"],
        ),
    ],
)
def test_needs(needs: Needs, codes: list[str]) -> None:
    verdict = match(spec(needs), query())
    assert [reason.code for reason in verdict.reasons] == codes
    assert verdict.ok == (not codes)


def test_a_vendors_build_of_a_package_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zz8.py").write_text("raise SystemExit('it was imported')")
    info = tmp_path / "acme_zz8-3.7.1+acme.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-zz8\nVersion: 3.7.1+acme\n")
    (info / "top_level.txt").write_text("zz8\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert match(spec(Needs(packages=("zz8>=3.6,<3.10",))), query())
    (reason,) = match(spec(Needs(packages=("zz8>=4",))), query()).reasons
    assert (reason.code, reason.found) == ("package_version", "3.7.1+acme")


def test_reasons_say_what_is_wanted_and_what_there_is() -> None:
    text = " ".join(
        map(str, match(spec(Needs(features=("fast",), archs=("b9", ArchRange("b", (3, 0), (4,))))), query()).reasons)
    )
    assert "wanted fast, found tiles, wide" in text
    assert "wanted b9 or b >= 3.0 < 4, found b2 (b 2.1)" in text


def machine(arch: str, *version: int) -> PlatformFacts:
    return PlatformFacts(name="any", arch=arch, device_type="cpu", arch_family=arch[:3], arch_version=version)


def test_what_can_be_said_of_architectures() -> None:
    """A set, a chip without its successor, and one side of a range."""
    chips = [machine("gfx906", 9, 0, 6), machine("gfx942", 9, 4, 2), machine("gfx950", 9, 5, 0)]
    chips += [machine("sm_90", 9, 0), machine("sm_100", 10, 0), machine("sm_103", 10, 3), machine("sm_120", 12, 0)]

    def serving(*archs: str | ArchRange) -> list[str]:
        return [chip.arch for chip in chips if check_needs(Needs(archs=archs), chip, "float32")]

    assert serving("gfx942", "gfx950") == ["gfx942", "gfx950"]
    assert serving("sm_100") == ["sm_100"]
    assert serving(ArchRange("sm_", (10, 0), (12, 0))) == ["sm_100", "sm_103"]
    assert serving("gfx906", ArchRange("sm_", (12,))) == ["gfx906", "sm_120"]
    assert serving() == [chip.arch for chip in chips]
    with pytest.raises(ValueError, match="the range b >= 3 < 3 is empty"):
        ArchRange("b", (3,), (3,))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterQuery(LinearQuery):
    """A query of a later release."""

    adapters: int = 0
    order: str = "rows"


def later(**asked: Any) -> LaterQuery:
    return LaterQuery(platform=BOX, site="up", dtype="float32", in_features=8, out_features=8, **asked)


def test_a_field_that_was_added_later_refuses_kernels_that_do_not_know_it() -> None:
    assert match(spec(), later())
    assert match(spec(), later(bias=True, weight_format="fp8_channel"))
    reasons = match(spec(), later(adapters=4, order="columns")).reasons
    assert [(reason.code, reason.wanted) for reason in reasons] == [
        ("not_understood", "adapters = 4"),
        ("not_understood", "order = 'columns'"),
    ]
    assert reasons[0].found == "a kernel that does not know adapters"
    knowing = replace(spec(), knows=FIRST_FIELDS | {"adapters"})
    assert match(knowing, later(adapters=4))
    assert [reason.wanted for reason in match(knowing, later(adapters=4, order="columns")).reasons] == [
        "order = 'columns'"
    ]


LATER_VALUES: dict[type[Query], dict[str, Any]] = {
    AttentionQuery: {"value_dim": 8, "chunked": True, "alibi": True},
    LinearQuery: {"lookup": True},
    MoEQuery: {"activation_alpha": 1.702, "activation_limit": 7.0, "up_offset": 1.0, "gated": False},
    OpQuery: {},
}
"""Values of fields that were added after the first release."""
OTHER_VALUES = {
    AttentionQuery: {"sliding_window": 8, "softcap": 2.0, "sinks": True, "causal": False, "latent_dim": 8},
    LinearQuery: {"bias": True, "weight_format": "fp8_channel"},
    MoEQuery: {
        "activation": "gelu",
        "renormalize": False,
        "scoring": "sigmoid",
        "scaling": 2.0,
        "bias": True,
        "num_groups": 2,
        "top_groups": 2,
        "group_scoring": "top2_sum",
        "weight_format": "fp8_channel",
    },
    OpQuery: {"attention": "a", "cache_layout": "b", "linear": "c", "weight_layout": "d"},
}
NEEDED = {
    AttentionQuery: {
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
        "block_size": 16,
        "cache_dtype": "float32",
        "scale": 1.0,
    },
    LinearQuery: {"in_features": 8, "out_features": 8},
    MoEQuery: {"num_experts": 4, "top_k": 2, "hidden_size": 8, "intermediate_size": 8},
    OpQuery: {"op": "rms_norm"},
}


@pytest.mark.parametrize("kind", OTHER_VALUES, ids=lambda kind: kind.__name__)
def test_a_kernel_that_knows_less_is_refused_field_by_field(kind: type[Query]) -> None:
    common: dict[str, Any] = {"platform": BOX, "site": "up", "dtype": "float32"} | NEEDED[kind]
    assert {*OTHER_VALUES[kind], *LATER_VALUES[kind]} == set(neutral_values(kind))
    assert set(OTHER_VALUES[kind]) <= FIRST_FIELDS
    plain = replace(spec(), knows=frozenset())
    assert match(plain, kind(**common))
    for name, value in OTHER_VALUES[kind].items():
        (reason,) = match(plain, kind(**common, **{name: value})).reasons
        assert (reason.code, reason.wanted) == ("not_understood", f"{name} = {value!r}")
        assert match(replace(plain, knows=frozenset({name})), kind(**common, **{name: value}))
        assert match(spec(), kind(**common, **{name: value}))


def test_a_kernel_of_experts_is_refused_with_a_fact_that_it_does_not_know() -> None:
    common: dict[str, Any] = {"platform": BOX, "site": "up", "dtype": "float32"} | NEEDED[MoEQuery]
    query = MoEQuery(**common, facts={"router_softcap": 30.0, "hashed": True})
    reasons = match(spec(), query).reasons
    assert [reason.wanted for reason in reasons] == ["hashed = True", "router_softcap = 30.0"]
    assert match(replace(spec(), knows=FIRST_FIELDS | {"router_softcap", "hashed"}), query)


def test_bounds_need_not_be_known() -> None:
    common: dict[str, Any] = {"platform": BOX, "site": "up", "dtype": "float32"} | NEEDED[AttentionQuery]
    assert match(replace(spec(), knows=frozenset()), AttentionQuery(**common, max_seq_len=1 << 20))


@pytest.mark.parametrize("kind", LATER_VALUES, ids=lambda kind: kind.__name__)
def test_a_kernel_of_the_first_release_is_refused_with_a_later_field(kind: type[Query]) -> None:
    common: dict[str, Any] = {"platform": BOX, "site": "up", "dtype": "float32"} | NEEDED[kind]
    assert not set(LATER_VALUES[kind]) & FIRST_FIELDS
    for name, value in LATER_VALUES[kind].items():
        (reason,) = match(spec(), kind(**common, **{name: value})).reasons
        assert (reason.code, reason.wanted) == ("not_understood", f"{name} = {value!r}")
        assert match(replace(spec(), knows=FIRST_FIELDS | {name}), kind(**common, **{name: value}))


def test_facts_that_an_ops_reference_names_must_be_known() -> None:
    def kernel(name: str, tier: Tier, *knows: str) -> KernelSpec:
        known = FIRST_FIELDS | set(knows)
        return KernelSpec(id=f"a.{name}", kind="op", op="rope", implementation="m:f", tier=tier, knows=known)

    def asked(**facts: Any) -> OpQuery:
        return OpQuery(platform=BOX, site="rope", dtype="float32", op="rope", facts=facts)

    specs = [kernel("reference", Tier.REFERENCE, "axes"), kernel("quick", Tier.NATIVE)]
    facts = facts_to_know("rope", specs)
    assert facts == {"axes"}
    assert not facts_to_know("rms_norm", specs)
    assert all(match(each, asked(size=8), facts) for each in specs)
    assert match(specs[0], asked(size=8, axes=3), facts)
    (reason,) = match(specs[1], asked(size=8, axes=3), facts).reasons
    assert (reason.code, reason.wanted) == ("not_understood", "axes = 3")
    assert match(kernel("new", Tier.NATIVE, "axes"), asked(axes=3), facts)


@pytest.mark.parametrize("declared", [False, True])
def test_batch_invariance_of_model_families(declared: bool) -> None:
    family = ModelSpec(id="a.b", architectures=("A",), implementation="m:f", describe="m:g", deterministic=declared)
    assert match_model(family, "A", deterministic=False)
    assert bool(match_model(family, "A", deterministic=True)) is declared
    assert [r.code for r in match_model(family, "B", deterministic=True).reasons] == ["architecture"]
