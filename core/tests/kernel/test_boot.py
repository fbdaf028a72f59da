"""The whole start with plugins of every kind, up to a plan that says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from wheelhouse import Wheelhouse, kernels

from llmk.api import (
    CheckpointError,
    Choice,
    ConfigError,
    LlmkError,
    ModelNotFound,
    PluginError,
    SelectionError,
    UnknownArchitecture,
)
from llmk.config import load
from llmk.config.measurements import Measured, Measurements, key_of, save_measurements
from llmk.kernel.boot import Boot, boot

LINEAR = 'id="{0}.linear", tier=Tier.{1}'


@pytest.fixture
def house(wheelhouse: Wheelhouse) -> Wheelhouse:
    """A platform and a model family are installed."""
    wheelhouse.install_box()
    return wheelhouse


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint folder of the toy family."""
    return write_model(tmp_path / "model")


def write_model(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["ToyForCausalLM"], **config}))
    return folder


def start(house: Wheelhouse, model: Path | str, *, on: str | None = None, verify: bool = False, **flags: Any) -> Boot:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    rules = {key.removeprefix("plugins."): dotted.pop(key) for key in list(dotted) if key.startswith("plugins.")}
    settings = load({**house.flags(rules), **dotted, "model.path": str(model)}, environ={}, cwd=house.folder)
    return boot(settings, on=on, verify=verify)


def codes(choice: Choice, id: str) -> list[str]:
    (rejection,) = (rejection for rejection in choice.rejected if rejection.id == id)
    return [reason.code for reason in rejection.reasons]


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
    assert {start(house, model, on=on).plan.platform.device_name for on in ("crate/9000", "crate/Box", "crate")} == {
        "Acme Box-9000 XL"
    }
    with pytest.raises(SelectionError, match=r"'crate/8000'.*\n.*crate/9000"):
        start(house, model, on="crate/8000")


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
            ("nothing that is installed", "avoided"),
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
    assert plan.warnings == ("[select.linear] prefer names fast.linear, which nothing installed has",)


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
    with pytest.raises(SelectionError, match="serves ToyForCausalLM with results that are independent") as caught:
        start(house, model, engine__deterministic=True)
    assert "toy.toy" in str(caught.value)
    assert "--engine.deterministic" in caught.value.hint
    with pytest.raises(SelectionError, match=r"toy\.toy is pinned") as caught:
        start(house, model, engine__deterministic=True, select__model__use="toy.toy")
    assert [reason.code for reason in caught.value.reasons] == ["not_deterministic"]


def test_dtype_falls_back_with_a_warning_that_names_both(house: Wheelhouse, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    facts = (house.folder / "plug_toy.py").read_text().replace('dtype="bfloat16"', 'dtype="float16"')
    (house.folder / "plug_toy.py").write_text(facts)
    plan = start(house, model).plan
    assert plan.dtype == "bfloat16"
    (warning,) = plan.warnings
    assert "float16" in warning
    assert "native: bfloat16, float32" in warning
    insisted = start(house, model, model__dtype="float16").plan
    assert (insisted.dtype, len(insisted.warnings)) == ("float16", 1)
    assert start(house, model, model__dtype="float32").plan.warnings == ()


def test_broken_winner_is_skipped_with_a_warning_or_fatal_when_strict(house: Wheelhouse, model: Path) -> None:
    code = kernels("friend", "linear_kernels", LINEAR.format("friend", "NATIVE")).replace("plug_friend:run", "absent:x")
    house.install("friend", code)
    assert start(house, model).plan.choice("linear", "up").id == "friend.linear"
    plan = start(house, model, verify=True).plan
    assert plan.choice("linear", "up").id == "reference.linear"
    assert codes(plan.choice("linear", "up"), "friend.linear") == ["import_failed"]
    (warning,) = plan.warnings
    for part in ("friend.linear", "skipped", "absent:x", "ModuleNotFoundError"):
        assert part in warning
    with pytest.raises(PluginError, match=r"friend-wheel 1\.0"):
        start(house, model, verify=True, engine__strict=True)
    with pytest.raises(SelectionError, match=r"friend\.linear is pinned"):
        start(house, model, verify=True, select__linear__use="friend.linear")


def test_broken_platform_implementation_is_fatal(house: Wheelhouse, model: Path) -> None:
    module = house.folder / "plug_box.py"
    module.write_text(module.read_text().replace("plug_box:BOX", "plug_box:GONE"))
    start(house, model)
    with pytest.raises(PluginError, match="plug_box:GONE"):
        start(house, model, verify=True)


def test_another_machine_can_be_planned_for(house: Wheelhouse, model: Path) -> None:
    needs = LINEAR.format("friend", "NATIVE") + ', needs=Needs(min_arch={"b": (2,)})'
    house.install("friend", kernels("friend", "linear_kernels", needs))
    assert start(house, model, on="box/b2").plan.choice("linear", "up").id == "friend.linear"
    old = start(house, model, on="box/b1").plan
    assert (old.platform.arch, old.choice("linear", "up").id) == ("b1", "reference.linear")
    assert codes(old.choice("linear", "up"), "friend.linear") == ["arch"]
    with pytest.raises(SelectionError, match="'box/b7'") as caught:
        start(house, model, on="box/b7")
    assert "box/b2" in caught.value.hint


@pytest.mark.hook("llmk_platforms")
def test_no_usable_platform_tells_why_of_each(wheelhouse: Wheelhouse, model: Path) -> None:
    with pytest.raises(SelectionError, match="no platform is installed") as caught:
        start(wheelhouse, model)
    assert "pip install llmk-backends-cpu" in caught.value.hint
    wheelhouse.install_box()
    module = wheelhouse.folder / "plug_box.py"
    text = module.read_text()
    for probe, said in (('Probe(no("no_device", wanted="a box"))', "wanted a box"), ("1 / 0", "ZeroDivisionError")):
        module.write_text(text.replace("Probe(OK, BOX)", probe))
        sys.modules.pop("plug_box", None)
        for flags in ({}, {"platform__use": "box"}):
            with pytest.raises(SelectionError) as caught:
                start(wheelhouse, model, **flags)
            assert said in str(caught.value)
    with pytest.raises(SelectionError, match="'bax'") as caught:
        start(wheelhouse, model, platform__use="bax")
    assert "box.box" in caught.value.hint


def test_two_platforms_of_one_rank_tie(house: Wheelhouse, model: Path) -> None:
    text = (house.folder / "plug_box.py").read_text()
    twin = text.replace('"box.box", name="box"', '"twin.twin", name="twin"').replace('name="box"', 'name="twin"')
    house.install("twin", twin)
    with pytest.raises(SelectionError, match=r"box\.box of box-wheel 1\.0 and twin\.twin of twin-wheel 1\.0 tie"):
        start(house, model)
    assert start(house, model, platform__use="twin").plan.platform_id == "twin.twin"


@pytest.mark.hook("llmk_models")
def test_architecture_that_nobody_registers(house: Wheelhouse, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", architectures=["ToyForCausalML"])
    with pytest.raises(UnknownArchitecture, match="'ToyForCausalML'") as caught:
        start(house, model)
    assert "ToyForCausalLM" in caught.value.hint or "pip install llmk-models" in caught.value.hint


def test_family_that_claims_all_comes_last(house: Wheelhouse, tmp_path: Path) -> None:
    other = (house.folder / "plug_toy.py").read_text().replace("plug_toy", "plug_any").replace("toy.toy", "any.any")
    house.install("any", other.replace('("ToyForCausalLM",)', '("*",)'))
    named, unnamed = write_model(tmp_path / "a"), write_model(tmp_path / "b", architectures=["Other"])
    assert start(house, named).plan.model == "toy.toy"
    assert start(house, unnamed).plan.model == "any.any"
    assert start(house, named, select__model__use="any.any").plan.model == "any.any"
    assert start(house, named, select__model__prefer=["any.any"]).plan.model == "any.any"
    with pytest.raises(SelectionError, match=r"toy\.toy is pinned"):
        start(house, unnamed, select__model__use="toy.toy")


@pytest.mark.parametrize(("text", "error"), [("bad sizes", PluginError), ("", None)])
def test_describe_that_raises_names_family_and_wheel(
    house: Wheelhouse, tmp_path: Path, text: str, error: type[LlmkError] | None
) -> None:
    model = write_model(tmp_path / "model", raises=text)
    if error is None:
        assert start(house, model).facts.model == "toy.toy"
        return
    with pytest.raises(error, match=r"toy\.toy of toy-wheel 1\.0") as caught:
        start(house, model)
    assert text in str(caught.value)


@pytest.mark.hook("llmk_demo_checkpoint")
def test_demo_model_comes_from_a_plugin(house: Wheelhouse, model: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model is named") as caught:
        start(house, "")
    assert "pip install llmk-models" in caught.value.hint
    house.install("demo", f"@hookimpl\ndef llmk_demo_checkpoint():\n    return {str(model)!r}\n")
    for name in ("", "demo"):
        assert start(house, name).checkpoint.path == model.resolve()


QUANTIZATION = """
def claims(checkpoint):
    method = checkpoint.quantization["quant_method"]
    return OK if method == "{method}" else no("quant_method", wanted="{method}", found=method)

@hookimpl
def llmk_quantization_methods():
    return [QuantizationSpec(
        id="{name}.q", name="{method}", weight_format="int4_group", claims=claims, implementation="plug_{name}:claims",
    )]
"""


@pytest.mark.hook("llmk_quantization_methods")
def test_quantized_checkpoint_needs_a_method_that_claims_it(house: Wheelhouse, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", quantization_config={"quant_method": "shrink"})
    with pytest.raises(CheckpointError, match=r"'shrink'.*installed: none"):
        start(house, model)
    house.install("other", QUANTIZATION.format(name="other", method="squash"))
    with pytest.raises(CheckpointError, match=r"installed: other\.q") as caught:
        start(house, model)
    assert "wanted squash, found shrink" in str(caught.value)
    house.install("mine", QUANTIZATION.format(name="mine", method="shrink"))
    plan = start(house, model).plan
    assert (plan.quantization, plan.quantization_implementation) == ("mine.q", "plug_mine:claims")
    formats = {c.site: c.query.weight_format for c in plan.choices if c.kind == "linear"}  # type: ignore[union-attr]
    assert formats == {"up": "int4_group", "head": "plain"}
    assert plan.choice("linear", "up").id == "reference.linear_int4_group"
    house.install("also", QUANTIZATION.format(name="also", method="shrink"))
    with pytest.raises(SelectionError, match=r"also\.q of also-wheel 1\.0 and mine\.q of mine-wheel 1\.0 tie"):
        start(house, model)
    assert start(house, model, select__quantization__use="mine.q").plan.quantization == "mine.q"


@pytest.mark.hook("llmk_quantization_methods")
def test_plain_weights_are_quantized_where_that_is_asked_for(house: Wheelhouse, tmp_path: Path) -> None:
    stored = QUANTIZATION.format(name="mine", method="shrink")
    online = """
        id="mine.online", name="press", weight_format="fp8_channel", implementation="plug_mine:claims", online=True,
        claims=lambda checkpoint: no("quantized") if checkpoint.quantization else OK,
    """
    house.install("mine", stored.replace("return [", f"return [QuantizationSpec({online}), "))
    plain = write_model(tmp_path / "plain")
    quantized = write_model(tmp_path / "quantized", quantization_config={"quant_method": "shrink"})
    assert (start(house, plain).plan.quantization, start(house, quantized).plan.quantization) == ("", "mine.q")
    plan = start(house, plain, model__quantization="press").plan
    formats = {c.site: c.query.weight_format for c in plan.choices if c.kind == "linear"}  # type: ignore[union-attr]
    assert (plan.quantization, formats) == ("mine.online", {"up": "fp8_channel", "head": "plain"})
    with pytest.raises(
        SelectionError, match=r"\[model\] quantization names 'shrink'.*did you mean|installed: mine.online"
    ):
        start(house, plain, model__quantization="shrink")
    with pytest.raises(SelectionError, match="press is pinned by"):
        start(house, quantized, model__quantization="press")


DEFAULTS = """
@hookimpl
def llmk_config_defaults(platform, model):
    return [Default("cache.block_size", {value}, f"good on {{platform.arch}} for {{model.architecture}}")]
"""


@pytest.mark.hook("llmk_config_defaults")
def test_defaults_of_plugins_are_taken_and_the_platforms_own_win(house: Wheelhouse, model: Path) -> None:
    house.install("advice", DEFAULTS.format(value=48))
    booted = start(house, model)
    assert booted.settings.config.cache.block_size == 48
    assert booted.settings.origin("cache.block_size").detail == "advice: good on b2 for ToyForCausalLM"
    assert booted.plan.choice("attention", "attention").query.block_size == 48  # type: ignore[union-attr]
    module = house.folder / "plug_box.py"
    module.write_text(module.read_text() + DEFAULTS.format(value=64))
    sys.modules.pop("plug_box")
    assert start(house, model).settings.config.cache.block_size == 64
    booted = start(house, model, cache__block_size=8)
    assert booted.settings.config.cache.block_size == 8
    assert booted.plan.warnings == ("cache.block_size: advice advises 48, but box 64, which wins",)


@pytest.mark.hook("llmk_config_defaults")
def test_plugin_with_an_unusable_default_is_quarantined(house: Wheelhouse, model: Path) -> None:
    house.install("advice", DEFAULTS.format(value="'big'"))
    booted = start(house, model)
    assert booted.settings.config.cache.block_size == 16
    (warning,) = booted.plan.warnings
    assert "advice-wheel 1.0" in warning
    assert "cache.block_size" in warning


CHECK = """
@hookimpl
def llmk_check_config(config, platform):
    if config.cache.block_size % 32:
        yield Problem("cache.block_size", f"{config.cache.block_size} is not a multiple of 32", "use 32")
"""


@pytest.mark.hook("llmk_check_config")
def test_final_configuration_is_checked(house: Wheelhouse, model: Path) -> None:
    house.install("strict", CHECK)
    with pytest.raises(ConfigError) as caught:
        start(house, model, cache__block_size="24")
    for part in ("cache.block_size (set by flag --cache.block-size)", "24 is not a multiple of 32", "use 32"):
        assert part in str(caught.value)
    start(house, model, cache__block_size="64")


def test_context_is_that_of_the_checkpoint_or_shorter(house: Wheelhouse, model: Path) -> None:
    booted = start(house, model)
    assert (booted.facts.max_model_len, booted.settings.config.model.max_model_len) == (128, 128)
    assert booted.settings.origin("model.max_model_len").source == "checkpoint"
    assert start(house, model, model__max_model_len=32).facts.max_model_len == 32
    with pytest.raises(ConfigError, match="the checkpoint allows 128 tokens, not 129"):
        start(house, model, model__max_model_len=129)


SCHEMA = """
from pydantic import BaseModel

class Section(BaseModel):
    speed: int = 3

@hookimpl
def llmk_config_schema():
    return Section
"""


@pytest.mark.hook("llmk_config_schema")
def test_plugins_sections_are_validated(house: Wheelhouse, model: Path) -> None:
    house.install("tuned", SCHEMA)
    assert start(house, model).settings.config.plugin["tuned"] == {"speed": 3}
    assert start(house, model, plugin__tuned__speed="5").settings.config.plugin["tuned"] == {"speed": 5}
    with pytest.raises(ConfigError, match=r"plugin\.tuned\.speed = 'high'"):
        start(house, model, plugin__tuned__speed="high")
    with pytest.raises(ConfigError, match=r"\[plugin\.absent\]"):
        start(house, model, plugin__absent__speed="1")


@pytest.mark.hook("llmk_plan_resolved")
def test_plan_is_announced_and_a_raising_listener_harms_nothing(house: Wheelhouse, model: Path) -> None:
    house.install("ear", "heard = []\n\n@hookimpl\ndef llmk_plan_resolved(plan):\n    heard.append(plan)\n")
    house.install("loud", "@hookimpl\ndef llmk_plan_resolved(plan):\n    raise OSError('full')\n")
    plan = start(house, model).plan
    assert sys.modules["plug_ear"].heard == [plan]


def test_broken_plugin_whose_id_is_pinned_is_fatal(house: Wheelhouse, model: Path) -> None:
    house.install("bad", "raise RuntimeError('no such chip')")
    (warning,) = start(house, model).plan.warnings
    assert "no such chip" in warning
    with pytest.raises(PluginError, match="no such chip"):
        start(house, model, select__linear__use="bad.linear")


def test_strange_platform_facts_survive_as_plain_data(house: Wheelhouse, model: Path) -> None:
    plan = start(house, model).plan
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["platform"]["features"] == ["wide"]
    assert data["fingerprint"] == plan.fingerprint == start(house, model).plan.fingerprint
    assert data["choices"][0]["pieces"][0]["id"] == "reference.attention"
