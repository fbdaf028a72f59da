"""An op that only a wheel knows: the kit tries it, ``llmk tune`` measures it, shadows compare it, by its examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import check_good, check_killed, failed, results

from llmk.api import KernelSpec, PluginError
from llmk.config import load
from llmk.engine.measuring import tune
from llmk.engine.measuring.tune import Tuner
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk.nn.build import Build
from llmk.planning.boot import Boot, boot
from llmk.planning.shadows import shadowed
from llmk.reference.op_examples import load_examples
from llmk_testing.bench import Bench
from llmk_testing.checkpoints import write_checkpoint

SPECS = """
from llmk.api import KernelSpec, ModelFacts, ModelSpec, OpContract, OpFacts, Tier, hookimpl

NAMES = ("quick", "forgets", "early", "greedy", "flat", "typed")

def spec(name, tier=Tier.NATIVE, **others):
    where = f"blend_kernels:{name}"
    return KernelSpec(id=f"blend.{name}", kind="op", op="blend_into", implementation=where, tier=tier, **others)

@hookimpl
def llmk_ops():
    others = [spec(name, score=-place) for place, name in enumerate(NAMES)]
    contract = OpContract(
        id="blend.into",
        op="blend_into",
        signature="(state, x, weight) -> out",
        facts=("size",),
        examples="blend_kernels:EXAMPLES",
        mutates_args=("state",),
        weights=("weight",),
    )
    return [contract, spec("plain", Tier.REFERENCE), *others]

def describe(checkpoint):
    sizes = {"num_layers": 1, "hidden_size": 48, "vocab_size": 64, "max_model_len": 128, "num_parameters": 1}
    op = OpFacts(site="blend", op="blend_into", facts={"size": 48})
    return ModelFacts(architecture="BlendForCausalLM", model="", dtype="float32", ops=(op,), **sizes)

@hookimpl
def llmk_models():
    where = {"implementation": "blend_kernels:EXAMPLES", "describe": "blend_specs:describe"}
    return [ModelSpec(id="blend.model", architectures=("BlendForCausalLM",), **where)]
"""
KERNELS = """
from dataclasses import replace
from itertools import count
from llmk.reference.op_examples import OpExamples

COUNT, SEEN = count(), set()

def make(draw, facts, rows):
    size = facts["size"]
    return draw.floats(rows, size), draw.floats(rows, size), draw.floats(size)

FORMS = {"strided": ("x", "weight"), "float32": ("state",)}
EXAMPLES = OpExamples(({"size": 64}, {"size": 33}), make, by_row=("state", "x"), options={"share": 0.25}, **FORMS)
ELSEWHERE = replace(EXAMPLES, by_row=("weight",))
NARROW = replace(EXAMPLES, make=lambda draw, facts, rows: make(draw, facts, rows)[:2])
ELSE = replace(EXAMPLES, facts=({"length": 64},))
FICKLE = replace(EXAMPLES, make=lambda draw, facts, rows: tuple(x + next(COUNT) for x in make(draw, facts, rows)))
ENDS = 3e38, 3e38, 0
ENDLESS = replace(EXAMPLES, make=lambda *given: tuple(x.mul(0).add(end) for x, end in zip(make(*given), ENDS)))
FEW = replace(EXAMPLES, make=lambda draw, facts, rows: make(draw, facts, min(rows, 64)))
SHARED = replace(EXAMPLES, facts=({"size": 64}, {"size": 33, "share": 0.5}))
SOMETIMES = replace(SHARED, keywords=lambda draw, facts: {"share": facts["share"]} if facts["size"] == 33 else {})
NOTHING = {"size": 64}

def blended(state, x, weight, share):
    SEEN.add(weight.data_ptr())
    return state.float() + share * x.float()

def plain(state, x, weight, *, share):
    '''A share of ``x`` is added to ``state``, in place; returns the sum, weighted.'''
    total = blended(state, x, weight, share)
    state.copy_(total)
    return (total * weight.float()).to(x.dtype)

def quick(state, x, weight, *, share):
    return plain(state, x, weight, share=share)

def forgets(state, x, weight, *, share):
    return plain(state.clone(), x, weight, share=share)

def early(state, x, weight, *, share):
    out = (state.float() * weight.float()).to(x.dtype)
    plain(state, x, weight, share=share)
    return out

def flat(state, x, weight, *, share):
    return plain(state, x, weight.as_strided(weight.shape, (1,)), share=share)

def typed(state, x, weight, *, share):
    return plain(state, x, weight, share=share).to(state.dtype)

def greedy(state, x, weight, *, share):
    out = plain(state, x, weight, share=share)
    x.zero_()
    return out
"""


@pytest.fixture
def wheel(site: Callable[..., str]) -> str:
    return site("blend", SPECS, blend_kernels=KERNELS)


@pytest.fixture
def shop(bench: Bench, wheel: str) -> Bench:
    """A bench where the wheel is installed."""
    return replace(bench, registry=Registry.discover(load(environ={}).config.plugins))


def spec(bench: Bench, name: str, **changes: Any) -> KernelSpec:
    found = next(kernel.spec for kernel in bench.registry.kernels("op") if kernel.spec.id == f"blend.{name}")
    return replace(found, **changes)


@pytest.mark.parametrize("name", ["plain", "quick"])
def test_good_ones_pass(shop: Bench, name: str) -> None:
    check_good("op", spec(shop, name, deterministic=True), shop)
    names = {result.name for result in results("op", spec(shop, name), shop)}
    assert "agrees with the reference: size 64, float32" in names


def test_a_good_contract_passes(shop: Bench) -> None:
    check_good("op_contract", shop.registry.contracts["blend_into"], shop)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"), [("forgets", "written in place"), ("early", "result 0"), ("greedy", "input")]
)
def test_planted_defects_are_found(shop: Bench, name: str, place: str) -> None:
    message = failed("op", spec(shop, name), shop)["agrees with the reference: size 64, float32"]
    assert place in message


@pytest.mark.parametrize(("name", "case"), [("flat", "takes any strides"), ("typed", "takes float32 with")])
def test_what_ignores_strides_or_dtypes_is_found(shop: Bench, name: str, case: str) -> None:
    check_killed("op", spec(shop, name), shop, case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mutates_args": ()}, "the reference changes the arguments ['state'], mutates_args names []"),
        ({"mutates_args": ("state", "x")}, "['state'], mutates_args names ['state', 'x']"),
        ({"weights": ("weight", "state")}, "state is named in weights, which are never changed"),
        ({"facts": ()}, "the examples need the fact 'size', which the contract does not name"),
        ({"examples": "blend_kernels:ENDLESS"}, "of its examples, the reference makes NaN"),
        ({"examples": "blend_kernels:ELSEWHERE"}, "argument weight is by_row, but has 64 rows"),
        ({"examples": "blend_kernels:FEW"}, "argument state is by_row, but has 64 rows where 700 were requested"),
        (
            {"examples": "blend_kernels:SOMETIMES"},
            "the examples need the fact 'share', which the contract",
        ),
        ({"examples": "blend_kernels:FICKLE"}, "made of the same draw twice"),
        ({"examples": "blend_kernels:NARROW"}, "make 2 arguments, 3 of (state, x, weight) -> out are expected"),
        ({"examples": "blend_kernels:ELSE"}, "the fact 'size', which the examples' facts {'length': 64} lack"),
        ({"signature": "(state, weight, x) -> out"}, "blend.plain takes state, x, weight; the signature is"),
        ({"parts": ("rms_norm",)}, "blend.plain has the parts (), the contract ('rms_norm',)"),
    ],
)
def test_a_contract_that_is_not_true_is_found(shop: Bench, changes: dict[str, Any], message: str) -> None:
    contract = replace(shop.registry.contracts["blend_into"], **changes)
    assert message in "\n".join(failed("op_contract", contract, shop).values())


def test_examples_of_another_type_are_refused(shop: Bench) -> None:
    contract = replace(shop.registry.contracts["blend_into"], examples="blend_kernels:NOTHING")
    with pytest.raises(PluginError, match=r"blend_kernels:NOTHING is \{.size.: 64\}"):
        load_examples(contract)


def test_examples_of_an_op_are_its_contracts(shop: Bench) -> None:
    with pytest.raises(
        ValueError, match=r"examples are only for kind 'moe', not for kind 'op'; .* are its OpContract's"
    ):
        spec(shop, "plain", examples="blend_kernels:EXAMPLES")


def booted(tmp_path: Path, **flags: Any) -> Boot:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "architectures": ["BlendForCausalLM"]}))
    common = {"model.path": str(checkpoint), "platform.use": "cpu", "platform.measurements": str(tmp_path / "times")}
    return boot(load({**common, **flags}, environ={}), verify=False)


def test_it_is_measured(wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "COUNTS", (17, 24))  # more than are recorded
    monkeypatch.setattr(tune, "_ROUND", 1e-4)
    said: list[str] = []
    path = Tuner(booted(tmp_path), said.append, frozenset({"blend"})).run()
    assert path is not None
    (measured,) = json.loads(path.read_text())["measured"]
    assert {count: set(times) for count, times in measured["microseconds"].items()} == {
        count: {"blend.plain", "blend.quick", "blend.greedy", "blend.flat", "blend.typed"} for count in ("17", "24")
    }, "of what is changed in place and returned, these are right on contiguous inputs of one dtype"
    for name in ("forgets", "early"):
        assert f"blend.{name} is left out: WrongResult" in "\n".join(said)


@pytest.mark.parametrize(("chosen", "beside"), [("plain", "quick"), ("quick", "plain"), ("quick", "forgets")])
def test_shadows_compare_what_is_changed_and_copy_no_weights(
    wheel: str, tmp_path: Path, chosen: str, beside: str
) -> None:
    flags = {"select.op.use": {"blend": f"blend.{chosen}"}, "select.op.shadow": {"blend": f"blend.{beside}"}}
    plan = shadowed(booted(tmp_path, **flags, **{"select.op.shadow_rate": 1.0})).plan
    build = Build(plan, dtype=torch.float32, device=torch.device("cpu"), load_object=load_object)
    kernel, seen = build.kernel("op", "blend"), load_object("blend_kernels:SEEN")
    seen.clear()
    assert build.shadows is not None
    assert build.shadows.start_step()
    weight = torch.randn(48)
    kernel(torch.randn(3, 48), torch.randn(3, 48), weight, share=0.5)
    (compared,) = build.shadows.take()
    assert compared.results == (([3, 48], "float32"), ([3, 48], "float32")), "what is returned and what is changed"
    assert compared.error is not None
    assert (float(compared.error) > 0.1) == (beside == "forgets")
    assert seen == {weight.data_ptr()}
