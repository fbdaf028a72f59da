"""What is chosen for each site, and why, with plugins of every kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from starts import LINEAR, codes, start, write_model
from wheelhouse import MODEL, Wheelhouse, kernels

from llmk.api import (
    SelectionError,
)
from llmk.cli.plugins import render_plugins
from llmk.config.measurements import Measured, Measurements, key_of, save_measurements
from llmk.planning.report import render_layouts


def test_plan_covers_the_models_sites_and_the_engines(house: Wheelhouse, model: Path) -> None:
    plan = start(house, model).plan
    assert (plan.platform_id, plan.model, plan.architecture, plan.dtype) == (
        "box.box", "toy.toy", "ToyForCausalLM", "bfloat16",
    )  # fmt: skip
    sites = {(choice.kind, choice.site) for choice in plan.choices}
    assert {
        ("attention", "attention"),
        ("linear", "up"),
        ("op", "norm"),
        ("op", "sample"),
        ("op", "embedding"),
    } <= sites
    assert dict(plan.wheels) == {"llmk-core": "0.1.0", "box-wheel": "1.0", "toy-wheel": "1.0"}
    assert plan.warnings == ()


def test_nothing_heavy_is_imported_to_plan(house: Wheelhouse, model: Path) -> None:
    before = {"torch", "transformers"} & set(sys.modules)
    start(house, model)
    assert {"torch", "transformers"} & set(sys.modules) == before


def test_ops_are_asked_with_what_was_chosen_at_their_sites(house: Wheelhouse, model: Path) -> None:
    plan = start(house, model).plan
    write: Any = plan.choice("op", "write").query
    assert (write.attention, write.cache_layout, write.linear) == ("reference.attention", "reference", None)
    act: Any = plan.choice("op", "act").query
    assert (act.linear, act.weight_layout, act.attention) == ("reference.linear", "plain", None)
    sample: Any = plan.choice("op", "sample").query
    assert dict(sample.facts) == {"vocab_size": 256, "hidden_size": 64}
    attention: Any = plan.choice("attention", "attention").query
    assert (attention.block_size, attention.cache_dtype, attention.scale) == (16, "bfloat16", 0.25)


def test_parts_of_a_composite_are_chosen_in_turn(house: Wheelhouse, model: Path) -> None:
    house.install("norms", kernels("norms", "ops", 'id="norms.rms", op="rms_norm", tier=Tier.NATIVE'))
    plan = start(house, model, plugins__trust=["norms-wheel"]).plan
    write = plan.choice("op", "write")
    assert write.id == "reference.qk_norm_rope_write_kv"
    assert write.pieces[0].parts == ("rms_norm", "rope", "attention.write")
    assert {part.op: part.id for part in write.parts} == {"rms_norm": "norms.rms", "rope": "reference.rope"}
    assert dict(plan.wheels)["norms-wheel"] == "1.0"


SPANNING = """
CONTRACT = OpContract(
    id="span.cap_up", op="cap_up", signature="(x, cap, weight, bias) -> out", parts=("softcap", "linear"),
    pattern=("softcap", "linear"),
)

def run(*args): ...

@hookimpl
def llmk_ops():
    given = {"kind": "op", "op": "cap_up", "implementation": "plug_span:run"}
    reference = KernelSpec(id="span.reference", tier=Tier.REFERENCE, parts=CONTRACT.parts, **given)
    fast = KernelSpec(id="span.fast", tier=Tier.NATIVE, supports=supports, bands=(TokenBand(1, 9),), **given)
    return [CONTRACT, reference, fast]

def supports(query):
    return OK if query.facts["size"] == 64 and query.weight_layout == "plain" else no("size")
"""
CHAIN = """
class Toy:
    def __init__(self, build, checkpoint): ...
    def forward(self, token_ids, step): ...
    def logits(self, hidden): ...
    def cache_specs(self): ...

OPS = (OpFacts(site="cap", op="softcap", facts={"size": SIZE}),)
CHAINS = (("cap", "up"), ("norm", "nothing"))

def describe(checkpoint):
    return ModelFacts(**FACTS, attention=(ATTENTION,), linear=LINEAR, ops=OPS, chains=CHAINS)

@hookimpl
def llmk_models():
    where = {"implementation": "plug_chain:Toy", "describe": "plug_chain:describe"}
    return [ModelSpec(id="chain.chain", architectures=("ChainForCausalLM",), **where)]
"""


@pytest.mark.parametrize("size", [64, 32])
def test_an_op_takes_the_place_of_sites_that_follow_each_other(house: Wheelhouse, tmp_path: Path, size: int) -> None:
    """Which a wheel declares and the model doesn't name; where only its reference serves, the sites stay apart."""
    before = MODEL.partition("def describe")[0]
    house.install("span", SPANNING)
    house.install("chain", f"SIZE = {size}\n{before}{CHAIN}")
    folder = write_model(tmp_path / "chained", architectures=["ChainForCausalLM"])
    plan = start(house, folder, plugins__trust=["span-wheel"]).plan
    assert plan.choice("op", "cap").id == "reference.softcap"
    assert plan.has("op", "cap+up") == (size == 64)
    if size == 64:
        choice = plan.choice("op", "cap+up")
        query: Any = choice.query
        assert (query.op, query.linear, query.weight_layout, dict(query.facts)) == (
            *("cap_up", "reference.linear", "plain"),
            {"size": 64},
        )
        assert [(piece.start, piece.id) for piece in choice.pieces] == [(1, "span.fast"), (9, "span.reference")]


@pytest.mark.parametrize(
    ("code", "flags", "taken"),
    [
        (SPANNING.replace("def run(*args): ...", ""), {"plugins__trust": ["span-wheel"]}, False),
        (SPANNING, {}, False),
        (SPANNING, {"select__op__prefer": ["span.fast"]}, True),
        (SPANNING, {"select__op__use": {"cap_up": "span.fast"}}, True),
    ],
    ids=["not loadable", "not trusted", "preferred", "pinned"],
)
def test_an_op_takes_no_place_unasked(
    house: Wheelhouse, tmp_path: Path, code: str, flags: dict[str, Any], *, taken: bool
) -> None:
    """Where it can't be loaded, or its wheel is not vouched for."""
    house.install("span", code)
    house.install("chain", f"SIZE = 64\n{MODEL.partition('def describe')[0]}{CHAIN}")
    folder = write_model(tmp_path / "chained", architectures=["ChainForCausalLM"])
    assert start(house, folder, **flags).plan.has("op", "cap+up") == taken


def test_composite_with_a_part_that_nothing_serves_is_set_aside(house: Wheelhouse, model: Path) -> None:
    spec = 'id="fuse.norm", op="rms_norm", tier=Tier.VENDOR, parts=("no_such_op",)'
    house.install("fuse", kernels("fuse", "ops", spec))
    choice = start(house, model, plugins__trust=["fuse-wheel"]).plan.choice("op", "norm")
    assert choice.id == "reference.rms_norm"
    assert codes(choice, "fuse.norm") == ["part_missing"]
    with pytest.raises(SelectionError, match=r"fuse\.norm is pinned") as caught:
        start(house, model, select__op__use__norm="fuse.norm")
    assert "no_such_op" in str(caught.value)


def test_composite_that_is_a_part_of_itself_is_set_aside(house: Wheelhouse, model: Path) -> None:
    spec = 'id="loop.norm", op="rms_norm", tier=Tier.VENDOR, parts=("rms_norm",)'
    house.install("loop", kernels("loop", "ops", spec))
    choice = start(house, model, plugins__trust=["loop-wheel"]).plan.choice("op", "norm")
    assert (choice.id, choice.parts[0].id) == ("loop.norm", "reference.rms_norm")
    assert codes(choice.parts[0], "loop.norm") == ["recursive"]


def test_a_strangers_wheel_changes_no_winner_until_the_config_says_so(house: Wheelhouse, model: Path) -> None:
    before = start(house, model).plan
    house.install("fast", kernels("fast", "linear_kernels", LINEAR.format("fast", "VENDOR")))
    plan = start(house, model).plan
    assert plan.choice("linear", "up").id == "reference.linear"
    assert codes(plan.choice("linear", "up"), "fast.linear") == ["not_vouched"]
    assert plan.fingerprint == before.fingerprint
    for rule in ({"plugins__trust": ["fast-wheel"]}, {"select__linear__prefer": ["fast.linear"]}):
        assert start(house, model, **rule).plan.choice("linear", "up").id == "fast.linear"
    pinned = start(house, model, select__linear__use__up="fast.linear").plan
    assert pinned.choice("linear", "up").pieces[0].why == "pinned by [select.linear] use"
    assert pinned.choice("linear", "head").id == "reference.linear"
    assert pinned.fingerprint != plan.fingerprint


def test_a_wheel_that_the_platform_names_may_win_by_tier(house: Wheelhouse, model: Path) -> None:
    linear = kernels("friend", "linear_kernels", LINEAR.format("friend", "NATIVE"))
    house.install("friend", linear)
    assert start(house, model).plan.choice("linear", "up").pieces[0].why == "tier native"


def test_plan_is_piecewise_over_token_counts(house: Wheelhouse, model: Path) -> None:
    bands = ', bands=(TokenBand(1, 17, score=1), TokenBand(17, 65)), layout="packed", prepare="plug_friend:run"'
    rest = 'id="friend.rest", tier=Tier.PORTABLE, layout="packed"'
    house.install("friend", kernels("friend", "linear_kernels", LINEAR.format("friend", "NATIVE") + bands, rest))
    plan = start(house, model).plan
    choice = plan.choice("linear", "up")
    assert [(piece.start, piece.id) for piece in choice.pieces] == [(1, "friend.linear"), (65, "friend.rest")]
    assert choice.pieces[0].prepare == "plug_friend:run"
    assert codes(choice, "reference.linear") == ["layout"]
    act: Any = plan.choice("op", "act").query
    assert (act.linear, act.weight_layout) == ("friend.linear", "packed")


def test_layout_with_a_gap_is_set_aside(house: Wheelhouse, model: Path) -> None:
    bands = ', bands=(TokenBand(1, 65),), layout="packed"'
    house.install("friend", kernels("friend", "linear_kernels", LINEAR.format("friend", "NATIVE") + bands))
    choice = start(house, model).plan.choice("linear", "up")
    assert (choice.id, codes(choice, "friend.linear")) == ("reference.linear", ["token_gap"])
    with pytest.raises(SelectionError, match="token counts from 65"):
        start(house, model, select__linear__use="friend.linear")


def test_measurement_beats_tier_and_vouching(house: Wheelhouse, model: Path) -> None:
    house.install("fast", kernels("fast", "linear_kernels", LINEAR.format("fast", "PORTABLE")))
    up = start(house, model).plan.choice("linear", "up").query
    assert up is not None
    folder, times = str(house.folder / "measured"), {1: {"fast.linear": 0.5, "reference.linear": 1.0}}
    measured = Measurements({key_of(up): Measured("2026-11-21", times)})
    save_measurements(folder, up.platform, measured, {"fast-wheel": "1.0"})
    plan = start(house, model, platform__measurements=folder).plan
    assert plan.choice("linear", "up").pieces[0].why == "measured 0.50x of reference.linear at 1 token, 2026-11-21"
    assert (plan.choice("linear", "up").id, plan.choice("linear", "head").id) == ("fast.linear", "reference.linear")
    save_measurements(folder, up.platform, measured, {"fast-wheel": "0.9"})
    plan = start(house, model, platform__measurements=folder).plan
    assert plan.choice("linear", "up").id == "reference.linear"
    assert any("left out: they are of fast-wheel 0.9, installed is 1.0" in warning for warning in plan.warnings)


def test_shipped_measurements_count_where_the_platform_vouches_and_the_user_has_none(
    house: Wheelhouse, model: Path, tmp_path: Path
) -> None:
    house.install("fast", kernels("fast", "linear_kernels", LINEAR.format("fast", "PORTABLE")))
    up = start(house, model).plan.choice("linear", "up").query
    assert up is not None
    for wheel in ("friend", "foe"):
        (house.folder / f"data_{wheel}").mkdir()
        times = {1: {"fast.linear": 0.5, "reference.linear": 1.0}}
        shipped = Measurements({key_of(up): Measured("2026-11-21", times)})
        save_measurements(str(house.folder / f"data_{wheel}/here"), up.platform, shipped, {})
    code = (
        "@hookimpl\ndef llmk_tuned_configs():\n    return [TunedConfigs(id='{0}.m', package='data_{0}', folder='here')]"
    )
    house.install("foe", code.format("foe"))
    assert start(house, model).plan.choice("linear", "up").id == "reference.linear"
    house.install("friend", code.format("friend"))
    assert start(house, model).plan.choice("linear", "up").id == "fast.linear"
    own = Measurements({key_of(up): Measured("2026-11-22", {1: {"fast.linear": 2.0, "reference.linear": 1.0}})})
    save_measurements(str(tmp_path / "own"), up.platform, own, {})
    plan = start(house, model, platform__measurements=str(tmp_path / "own")).plan
    assert plan.choice("linear", "up").pieces[0].why == "measured 0.50x of fast.linear at 1 token, 2026-11-22"
    assert start(house, model, platform__measurements="none").plan.choice("linear", "up").id == "reference.linear"


def test_a_layout_is_chosen_over_all_token_counts_and_explained(house: Wheelhouse, model: Path) -> None:
    packed = LINEAR.format("fast", "NATIVE") + ', layout="packed"'
    house.install("fast", kernels("fast", "linear_kernels", packed))
    up = start(house, model).plan.choice("linear", "up").query
    assert up is not None
    times = {
        1: {"fast.linear": 9.0, "reference.linear": 10.0},
        512: {"fast.linear": 500.0, "reference.linear": 50.0},
    }
    folder = str(house.folder / "measured")
    save_measurements(folder, up.platform, Measurements({key_of(up): Measured("2026-11-21", times)}), {})
    mixed = {"platform__traffic": {1: 3, 512: 1}, "platform__measurements": folder}
    plan = start(house, model, **mixed).plan
    choice = plan.choice("linear", "up")
    assert (choice.layout, [piece.id for piece in choice.pieces]) == ("plain", ["reference.linear"])
    *_, header, _, first, second = render_layouts(plan).splitlines()
    assert "traffic: platform.traffic" in render_layouts(plan)
    assert header.split() == ["site", "layout", "1", "(75%)", "512", "(25%)", "mean"]
    assert first.split() == ["up", "plain", "(chosen)", "10.0", "50.0", "20.0"]
    assert second.split() == ["packed", "9.0", "500.0", "131.8"]
    decodes = start(house, model, **mixed | {"platform__traffic": {1: 1}}).plan
    assert decodes.choice("linear", "up").id == "fast.linear"
    preferred = start(house, model, **mixed, select__linear__prefer=["fast.linear"]).plan
    assert "packed (chosen)" in render_layouts(preferred)
    assert render_layouts(start(house, model).plan) == ""


@pytest.mark.parametrize("package", ["plug_friend", "no_such_package", "no_such.package", "json"])
def test_shipped_measurements_that_are_not_there_are_reported(house: Wheelhouse, model: Path, package: str) -> None:
    code = "@hookimpl\ndef llmk_tuned_configs():\n    return [TunedConfigs(id='friend.m', package={!r}, folder='here')]"
    house.install("friend", code.format(package))
    (warning,) = start(house, model).plan.warnings
    for part in ("friend.m (friend-wheel 1.0) is not used", f"folder 'here' in {package}", "package data"):
        assert part in warning
    assert warning.rpartition("not used: ")[2] in render_plugins(house.discover())


def test_a_machine_can_be_named_by_its_device(house: Wheelhouse, model: Path) -> None:
    named = "import plug_box\nBIG = replace(plug_box.BOX, name='crate', device_name='Acme Box-9000 XL')\n"
    house.install(
        "crate",
        f"""
        from dataclasses import replace
        {named.replace(chr(10), chr(10) + " " * 8)}
        @hookimpl
        def llmk_platforms():
            return [PlatformSpec(
                id="crate.crate", name="crate", implementation="plug_crate:BIG", probe=lambda host: Probe(no("absent")),
                known=(BIG,),
            )]
        """,
    )
    for on in ("crate/9000", "crate/Box", "crate/xl box", "crate"):
        assert start(house, model, on=on).plan.platform.device_name == "Acme Box-9000 XL"
    for on, hint in (
        ("crate/8000", "known: crate/9000, crate/b2"),
        ("crate/tiny", "known: crate/b2"),
        ("9000", "known: crate/9000"),
        ("barrel/9000", "known: box, crate"),
    ):
        with pytest.raises(SelectionError, match=f"'{on}'") as caught:
            start(house, model, on=on)
        assert caught.value.hint == hint


def test_consented_override_wins_like_what_it_replaces(house: Wheelhouse, model: Path) -> None:
    house.install("friend", kernels("friend", "linear_kernels", LINEAR.format("friend", "NATIVE")))
    override = LINEAR.format("over", "NATIVE") + ', overrides="friend.linear"'
    house.install("over", kernels("over", "linear_kernels", override))
    choice = start(house, model).plan.choice("linear", "up")
    assert (choice.id, codes(choice, "over.linear")) == ("friend.linear", ["override_not_allowed"])
    choice = start(house, model, plugins__allow_overrides=["friend.linear"]).plan.choice("linear", "up")
    assert (choice.id, codes(choice, "friend.linear")) == ("over.linear", ["overridden"])


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"select__linear__use": "slow.linear"}, ("slow.linear", "'up'", "wanted narrow", "wanted float64", "box/b2")),
        ({"select__linear__use": "slow.liner"}, ("'slow.liner'", "did you mean slow.linear")),
        ({"select__linear__use__upp": "reference.linear"}, ("upp", "linear sites: up")),
        ({"select__op__use__norm": "reference.rope"}, ("reference.rope", "op: wanted rms_norm, found rope")),
        ({"select__op__use": "reference.gelu_and_mul"}, ("gelu_and_mul", "does not have")),
        ({"select__moe__use": "reference.fused_moe"}, ("reference.fused_moe", "does not have")),
        ({"select__model__use": "toy.toi"}, ("toy.toi", "did you mean toy.toy")),
        (
            {"select__attention__avoid": ["reference.attention", "reference.attention_invariant"]},
            ("no installed kernel serves", "avoided"),
        ),
    ],
)
def test_pin_that_cannot_be_honoured_is_fatal_with_all_reasons(
    house: Wheelhouse, model: Path, flags: dict[str, Any], parts: tuple[str, ...]
) -> None:
    needs = 'id="slow.linear", tier=Tier.NATIVE, needs=Needs(features=("narrow",), dtypes=("float64",))'
    house.install("slow", kernels("slow", "linear_kernels", needs))
    with pytest.raises(SelectionError) as caught:
        start(house, model, **flags)
    for part in parts:
        assert part in str(caught.value)


def test_pin_of_an_op_for_all_sites_leaves_other_ops_alone(house: Wheelhouse, model: Path) -> None:
    plan = start(house, model, select__op__use="reference.rms_norm").plan
    assert plan.choice("op", "norm").pieces[0].why == "pinned by [select.op] use"
    assert plan.choice("op", "sample").pieces[0].why == "only candidate"


def test_preference_that_meets_nothing_is_a_warning(house: Wheelhouse, model: Path) -> None:
    plan = start(house, model, select__linear__prefer=["fast.linear"]).plan
    assert plan.warnings == ("[select.linear] prefer names fast.linear, which is not installed",)
    needs = 'id="slow.linear", tier=Tier.NATIVE, needs=Needs(dtypes=("float64",))'
    house.install("slow", kernels("slow", "linear_kernels", needs))
    (warning,) = start(house, model, select__linear__prefer=["slow.linear", "reference.linear"]).plan.warnings
    assert warning.startswith("[select.linear] prefer names slow.linear, which serves no site here: dtype")


def test_deterministic_takes_batch_invariant_kernels_alone(house: Wheelhouse, model: Path) -> None:
    house.install("friend", kernels("friend", "linear_kernels", LINEAR.format("friend", "NATIVE")))
    choice = start(house, model, engine__deterministic=True).plan.choice("linear", "up")
    assert (choice.id, codes(choice, "friend.linear")) == ("reference.linear_invariant", ["not_deterministic"])
    assert codes(choice, "reference.linear") == ["not_deterministic"]
    plain = start(house, model, select__linear__avoid=["friend.linear"]).plan.choice("linear", "up")
    assert (plain.id, plain.pieces[0].why) == ("reference.linear", "best score in tier reference")
    assert codes(plain, "reference.linear_invariant") == ["layout"]


def test_deterministic_plans_have_one_piece_per_site(house: Wheelhouse, model: Path) -> None:
    """Else a row's kernel would depend on how many others there are."""
    bands = ", deterministic=True, bands=(TokenBand(1, 17, score=1), TokenBand(17))"
    gap = 'id="friend.gap", tier=Tier.VENDOR, deterministic=True, bands=(TokenBand(1, 65),)'
    rest = 'id="friend.rest", tier=Tier.NATIVE, deterministic=True, bands=(TokenBand(1, 17), TokenBand(17, score=1))'
    linear = LINEAR.format("friend", "NATIVE") + bands
    house.install("friend", kernels("friend", "linear_kernels", linear, gap, rest))
    several = start(house, model).plan.choice("linear", "up")
    assert [piece.id for piece in several.pieces] == ["friend.gap", "friend.rest"]
    one = start(house, model, engine__deterministic=True).plan.choice("linear", "up")
    assert [(piece.start, piece.id) for piece in one.pieces] == [(1, "friend.linear")]
    assert "for batch invariance" in one.pieces[0].why
    assert (codes(one, "friend.gap"), codes(one, "friend.rest")) == (["token_gap"], ["outranked"])


def test_deterministic_refuses_a_model_family_that_does_not_declare_it(house: Wheelhouse, model: Path) -> None:
    module = house.folder / "plug_toy.py"
    module.write_text(module.read_text().replace("deterministic=True", "deterministic=False"))
    start(house, model)
    with pytest.raises(SelectionError, match="serves ToyForCausalLM with batch invariance") as caught:
        start(house, model, engine__deterministic=True)
    assert "toy.toy" in str(caught.value)
    assert "--engine.deterministic" in caught.value.hint
    with pytest.raises(SelectionError, match=r"toy\.toy is pinned") as caught:
        start(house, model, engine__deterministic=True, select__model__use="toy.toy")
    assert [reason.code for reason in caught.value.reasons] == ["not_deterministic"]
