"""The whole start with plugins of every kind, up to a plan that says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from starts import LINEAR, codes, start, write_model
from wheelhouse import Wheelhouse, kernels

from llmk.api import (
    CheckpointError,
    ConfigError,
    LlmkError,
    ModelNotFound,
    PluginError,
    QuantizationChoice,
    SelectionError,
    UnknownArchitecture,
)


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


RAISES = LINEAR.format("friend", "NATIVE")


@pytest.mark.parametrize("verify", [True, False], ids=["imported", "looked for"])
@pytest.mark.parametrize(
    ("location", "part"),
    [
        ("absent:x", "No module named 'absent'"),
        ("plug_friend.absent:x", "No module named 'plug_friend.absent'"),
        ("json.absent:x", "No module named 'json.absent'"),
        ("plug_friend:x", "'x'"),
        ("json.encoder:x", "'x'"),
    ],
)
def test_broken_winner_is_skipped_with_a_warning_or_fatal_when_strict(
    house: Wheelhouse, model: Path, verify: bool, location: str, part: str
) -> None:
    code = kernels("friend", "linear_kernels", RAISES).replace("plug_friend:run", location)
    house.install("friend", code)
    plan = start(house, model, verify=verify).plan
    assert plan.choice("linear", "up").id == "reference.linear"
    assert codes(plan.choice("linear", "up"), "friend.linear") == ["import_failed"]
    (warning,) = plan.warnings
    for text in ("friend.linear", "skipped", location, part):
        assert text in warning
    with pytest.raises(PluginError, match=r"friend-wheel 1\.0"):
        start(house, model, verify=verify, engine__strict=True)
    with pytest.raises(SelectionError, match=r"friend\.linear is pinned"):
        start(house, model, verify=verify, select__linear__use="friend.linear")


@pytest.mark.parametrize(
    "module",
    [
        "def __getattr__(name): raise RuntimeError('too early')",
        "from json import *",
        "globals()['run'] = print; run = run",
        "try:\n    import no_such\nexcept ImportError:\n    def run(*args): ...\nelse:\n    run = no_such.run",
        "if True:\n    from json import dumps as run",
        "with open(__file__) as run:\n    pass",
        "for run in (print,):\n    pass",
        "class run: ...",
        "this is no Python",
    ],
)
def test_what_may_be_there_is_not_said_to_be_missing(house: Wheelhouse, model: Path, module: str) -> None:
    """And nothing of it runs."""
    code = kernels("friend", "linear_kernels", RAISES).replace("plug_friend:run", "friend_kernels:run")
    house.install("friend", code)
    (house.folder / "friend_kernels.py").write_text(f"{module}\nraise RuntimeError('it was imported')\n")
    assert start(house, model).plan.choice("linear", "up").id == "friend.linear"
    assert "friend_kernels" not in sys.modules


def test_looking_for_a_module_does_not_import_the_packages_around_it(house: Wheelhouse, model: Path) -> None:
    (house.folder / "heavy" / "inner").mkdir(parents=True)
    for package in ("heavy", "heavy/inner"):
        (house.folder / package / "__init__.py").write_text("raise RuntimeError('it was imported')")
    (house.folder / "heavy/inner/kernels.py").write_text("def run(*args): ...")
    code = kernels("friend", "linear_kernels", RAISES)
    house.install("friend", code.replace("plug_friend:run", "heavy.inner.kernels:run"))
    assert start(house, model).plan.choice("linear", "up").id == "friend.linear"
    module = house.folder / "plug_friend.py"
    module.write_text(module.read_text().replace("heavy.inner.kernels:run", "heavy.inner.kernels:walk"))
    sys.modules.pop("plug_friend")
    assert start(house, model).plan.choice("linear", "up").id == "reference.linear"


def test_a_backend_that_lacks_a_method_is_skipped_and_the_method_named(house: Wheelhouse, model: Path) -> None:
    code = kernels("friend", "attention_backends", 'id="friend.attention", tier=Tier.NATIVE, layout="x"')
    code += """
class Half:
    def __init__(self, query, device): ...
    def cache_layout(self, num_blocks): ...
    def write(self, key, value, cache, meta, scales=(1.0, 1.0)): ...
    def run(self, query, cache, meta, sinks=None, scales=(1.0, 1.0)): ...
"""
    house.install("friend", code.replace("plug_friend:run", "plug_friend:Half"))
    plan = start(house, model, verify=True).plan
    assert plan.choice("attention", "attention").id == "reference.attention"
    (warning,) = plan.warnings
    for part in ("friend.attention", "contract", "llmk.api.AttentionBackend", "found no prepare(step)"):
        assert part in warning
    with pytest.raises(SelectionError, match="contract"):
        start(house, model, verify=True, select__attention__use="friend.attention")


@pytest.mark.parametrize(
    ("op", "code", "found"),
    [
        ("rms_norm", "def run(x, weight): ...", "the arguments (x, weight) instead of (x, weight, eps)"),
        ("rms_norm", "run = 3", "= 3, which can't be called"),
        (
            "gate_up_silu",
            "def run(x, weight): ...",
            "the arguments (x, weight) instead of (x, weight, bias, **options)",
        ),
        ("rms_norm", "def run(x, weight, eps, *more): ...", ""),
        ("gate_up_silu", "def run(x, w, b=None): ...", ""),
    ],
)
def test_a_kernel_of_an_op_takes_the_arguments_of_its_reference(
    house: Wheelhouse, model: Path, op: str, code: str, found: str
) -> None:
    spec = f'id="friend.op", op="{op}", tier=Tier.NATIVE'
    house.install("friend", f"{kernels('friend', 'ops', spec)}\n{code}")
    plan = start(house, model, verify=True).plan
    chosen = next(choice for choice in plan.all_choices() if choice.op == op)
    assert chosen.id == (f"reference.{op}" if found else "friend.op")
    assert [found in warning for warning in plan.warnings] == ([True] if found else [])


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def run(parts): return lambda x, weight: x", "(x, weight) instead of (x, weight, eps)"),
        ("def run(parts): return lambda x, weight, eps: x", ""),
        ("def run(parts): return parts['add_rms_norm'].__wrapped__", ""),
        ("def run(): ...", "() instead of (parts)"),
    ],
)
def test_so_does_what_a_factory_makes_of_parts(house: Wheelhouse, model: Path, code: str, found: str) -> None:
    spec = 'id="friend.op", op="rms_norm", tier=Tier.NATIVE, parts=("add_rms_norm_fp32_residual",)'
    (house.folder / "parts.py").write_text("")
    house.install("friend", f"{kernels('friend', 'ops', spec)}\n{code}")
    plan = start(house, model, verify=True).plan
    assert [found in warning for warning in plan.warnings] == ([True] if found else [])


def test_a_kernel_that_does_not_know_a_fact_of_its_op_is_passed_over(house: Wheelhouse, model: Path) -> None:
    module = house.folder / "plug_toy.py"
    text = module.read_text()
    norms = ('id="friend.plain", op="blend", tier=Tier.REFERENCE, knows=FIRST_FIELDS | {"axes"}',)
    norms += ('id="friend.quick", op="blend", tier=Tier.NATIVE',)
    house.install("friend", kernels("friend", "ops", *norms))
    for facts, id, why in (("", "friend.quick", ["outranked"]), ('"axes": 3', "friend.plain", ["not_understood"])):
        site = f'OpFacts(site="blend", op="blend", facts={{{facts}}}),'
        module.write_text(text.replace("OPS = (", f"OPS = ({site}"))
        sys.modules.pop("plug_toy", None)
        choice = start(house, model).plan.choice("op", "blend")
        assert choice.id == id
        assert [reason.code for out in choice.rejected for reason in out.reasons] == why


@pytest.mark.parametrize("verify", [True, False])
def test_broken_platform_implementation_is_fatal(house: Wheelhouse, model: Path, verify: bool) -> None:
    module = house.folder / "plug_box.py"
    module.write_text(module.read_text().replace("plug_box:Box", "plug_box:GONE"))
    with pytest.raises(PluginError, match=r"plug_box:GONE of box-wheel 1\.0"):
        start(house, model, verify=verify)


def test_another_machine_can_be_planned_for(house: Wheelhouse, model: Path) -> None:
    needs = LINEAR.format("friend", "NATIVE") + ', needs=Needs(archs=(ArchRange("b", (2,)),))'
    house.install("friend", kernels("friend", "linear_kernels", needs))
    assert start(house, model, on="box/b2").plan.choice("linear", "up").id == "friend.linear"
    old = start(house, model, on="box/b1").plan
    assert (old.platform.arch, old.choice("linear", "up").id) == ("b1", "reference.linear")
    assert codes(old.choice("linear", "up"), "friend.linear") == ["arch"]
    with pytest.raises(SelectionError, match="'box/b7'") as caught:
        start(house, model, on="box/b7")
    assert "box/b2" in caught.value.hint


@pytest.mark.hook("llmk_platforms")
def test_no_usable_platform_reports_the_reason_of_each(wheelhouse: Wheelhouse, model: Path) -> None:
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


@pytest.mark.parametrize(
    ("rank", "unused", "flags", "warnings"),
    [
        (100, ("Chip", "Chip", "Old"), {}, 1),
        (100, (), {}, 0),
        (99, ("Chip",), {}, 0),
        (100, ("Chip",), {"platform__use": "box"}, 0),
    ],
)
def test_a_plan_warns_of_better_devices_that_can_t_be_used(
    house: Wheelhouse, model: Path, rank: int, unused: tuple[str, ...], flags: dict[str, str], warnings: int
) -> None:
    text = (house.folder / "plug_box.py").read_text()
    text = text.replace('"box.box", name="box"', '"big.big", name="big"').replace("rank=99", f"rank={rank}")
    probe = f'Probe(no("no_permission", wanted="to open it") & no("no_driver"), unused={unused!r})'
    house.install("big", text.replace("Probe(OK, BOX)", probe))
    found = start(house, model, **flags).plan
    assert (found.platform_id, len(found.warnings)) == ("box.box", warnings)
    why = "platform big (big-wheel 1.0) is not usable here: no permission; no driver (llmk doctor says more)"
    assert not warnings or found.warnings == (f"not used: 2 x Chip, Old; {why}",)


def test_of_two_platforms_of_one_name_the_one_that_was_chosen_runs(house: Wheelhouse, model: Path) -> None:
    text = (house.folder / "plug_box.py").read_text()
    house.install("other", text.replace('"box.box"', '"other.box"').replace("plug_box:Box", "plug_other:Box"))
    for id in ("box.box", "other.box"):
        plan = start(house, model, platform__use=id).plan
        assert (plan.platform_id, plan.platform_implementation) == (id, f"plug_{id.replace('.box', '')}:Box")


@pytest.mark.hook("llmk_models")
def test_architecture_that_no_plugin_registers(house: Wheelhouse, tmp_path: Path) -> None:
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
        id="{name}.q", name="{method}", weight_format="int4_group", claims=claims,
        implementation="llmk.nn:Quantization",
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
    assert plan.quantization == (QuantizationChoice("mine.q", "llmk.nn:Quantization", "int4_group", 8.0),)
    formats = {c.site: c.query.weight_format for c in plan.choices if c.kind == "linear"}  # type: ignore[union-attr]
    assert formats == {"up": "int4_group", "head": "plain"}
    assert plan.choice("linear", "up").id == "reference.linear_int4_group"
    house.install("also", QUANTIZATION.format(name="also", method="shrink"))
    with pytest.raises(SelectionError, match=r"also\.q of also-wheel 1\.0 and mine\.q of mine-wheel 1\.0 tie"):
        start(house, model)
    assert start(house, model, select__quantization__use="mine.q").plan.quantization == plan.quantization


@pytest.mark.hook("llmk_quantization_methods")
def test_plain_weights_are_quantized_if_configured(house: Wheelhouse, tmp_path: Path) -> None:
    stored = QUANTIZATION.format(name="mine", method="shrink")
    online = """
        id="mine.online", name="press", weight_format="fp8_channel", implementation="llmk.nn:Quantization", online=True,
        claims=lambda checkpoint: no("quantized") if checkpoint.quantization else OK,
    """
    house.install("mine", stored.replace("return [", f"return [QuantizationSpec({online}), "))
    plain = write_model(tmp_path / "plain")
    quantized = write_model(tmp_path / "quantized", quantization_config={"quant_method": "shrink"})
    assert [method.id for method in start(house, quantized).plan.quantization] == ["mine.q"]
    assert start(house, plain).plan.quantization == ()
    plan = start(house, plain, model__quantization="press").plan
    formats = {c.site: c.query.weight_format for c in plan.choices if c.kind == "linear"}  # type: ignore[union-attr]
    assert [method.id for method in plan.quantization] == ["mine.online"]
    assert formats == {"up": "fp8_channel", "head": "plain"}
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
