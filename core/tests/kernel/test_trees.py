"""Families that give a tree: what is planned of it, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from starts import LINEAR, start, write_model
from wheelhouse import Wheelhouse, kernels

from llmk.api import ModelSpec, PluginError

TREE = """
from llmk.tree import *

def layer(at, inner):
    mlp = GatedMLP.of(f"{at}.mlp", 16, inner)
    return (Residual(norm=Norm(at=f"{at}.norm", size=16, eps=1e-5), block=mlp),)

def tree(config):
    match config.values.get("wrong"):
        case "raises": raise RuntimeError("bad sizes")
        case "returns": return config
        case "twice": layers = (layer("0", 8), layer("0", 8))
        case _: layers = (layer("0", 8), layer("1", 24), layer("2", 8))
    return CausalLM(
        embed=Embedding(at="embed", vocab_size=50, size=16), layers=layers, norm=Norm(at="norm", size=16, eps=1e-5),
        head=Head(at="head", vocab_size=50, size=16), max_model_len=config.size("longest"),
    )

@hookimpl
def llmk_models():
    return [ModelSpec(id="oak.oak", architectures=("OakForCausalLM",), tree="plug_oak:tree")]
"""


@pytest.fixture
def oak(house: Wheelhouse) -> Wheelhouse:
    house.install("oak", TREE)
    return house


def checkpoint(folder: Path, **config: object) -> Path:
    return write_model(folder / "oak", **{"architectures": ["OakForCausalLM"], "longest": 64, **config})


def test_facts_and_sites_are_the_trees(oak: Wheelhouse, tmp_path: Path) -> None:
    started = start(oak, checkpoint(tmp_path))
    facts, plan = started.facts, started.plan
    assert (facts.model, facts.num_layers, facts.max_model_len) == ("oak.oak", 3, 64)
    assert facts.num_parameters == 16 * (3 * (8 + 24 + 8) + 2 * 50 + 4)
    assert {site.site: site.count for site in facts.linear} == {
        "gate_up": 2, "down": 2, "gate_up.2": 1, "down.2": 1, "lm_head": 1,
    }  # fmt: skip
    assert plan.model_implementation == "llmk.nn.tree_model:TreeModel"
    assert plan.choice("op", "norm_gate_up_silu.2").id == "reference.add_rms_norm_gate_up_silu"


def test_a_pin_of_a_role_holds_for_all_its_sites(oak: Wheelhouse, tmp_path: Path) -> None:
    linear = (LINEAR.format("fast", "VENDOR"), 'id="fast.other", tier=Tier.PORTABLE')
    oak.install("fast", kernels("fast", "linear_kernels", *linear))
    pins = {"select__linear__use": {"down": "fast.linear", "gate_up": "fast.linear", "gate_up.2": "fast.other"}}
    plan = start(oak, checkpoint(tmp_path), **pins).plan
    sites = ("down", "down.2", "gate_up", "gate_up.2", "lm_head")
    assert [plan.choice("linear", site).id for site in sites] == [
        "fast.linear", "fast.linear", "fast.linear", "fast.other", "reference.linear",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("raises", r"oak\.oak of oak-wheel 1\.0 can't describe .*bad sizes"),
        ("returns", "plug_oak:tree returned Config, not CausalLM"),
        ("twice", r"the tensor '0\.norm\.weight' twice: as Norm at '0\.norm' and Norm at '0\.norm'"),
    ],
)
def test_a_wrong_tree_is_named(oak: Wheelhouse, tmp_path: Path, wrong: str, message: str) -> None:
    with pytest.raises(PluginError, match=f"(?s){message}"):
        start(oak, checkpoint(tmp_path, wrong=wrong))


def test_facts_that_name_a_site_twice_are_refused(house: Wheelhouse, model: Path) -> None:
    twin = "from plug_toy import *\n\ndef describe(checkpoint):\n    return ModelFacts(**FACTS, linear=LINEAR * 2)\n"
    spec = (
        'ModelSpec(id="twin.twin", architectures=("*",), implementation="plug_toy:Toy", describe="plug_twin:describe")'
    )
    house.install("twin", f"{twin}\n@hookimpl\ndef llmk_models():\n    return [{spec}]\n")
    with pytest.raises(PluginError, match=r"twin\.twin of twin-wheel 1\.0 name linear sites twice: head, up"):
        start(house, model, select__model__use="twin.twin")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "nothing"),
        ({"describe": "m:f"}, "describe"),
        ({"implementation": "m:f"}, "implementation"),
        ({"tree": "m:f", "implementation": "m:f", "describe": "m:f"}, "tree and implementation and describe"),
    ],
)
def test_a_model_gives_a_tree_or_modules_of_its_own(given: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=f"a.b gives {named}; a model gives a tree, or implementation and describe"):
        ModelSpec(id="a.b", architectures=("A",), **given)  # type: ignore[arg-type]
