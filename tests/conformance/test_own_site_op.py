"""Ops that only a wheel knows, over attention and with a linear kernel: the kit tests them, ``llmk tune`` measures
them and shadows compare them as they do the core's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import check_good, failed

from llmk.api import KernelSpec
from llmk.config import load
from llmk.engine.measuring import tune
from llmk.engine.measuring.tune import Tuner
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk.nn.build import Build
from llmk.planning.boot import Boot, boot
from llmk.planning.shadows import shadowed
from llmk_testing.bench import Bench
from llmk_testing.checkpoints import write_checkpoint

SPECS = """
from llmk.api import (
    AttentionFacts, KernelSpec, LinearFacts, ModelFacts, ModelSpec, OpContract, OpFacts, Tier, hookimpl
)

GATED = OpContract(
    id="weave.gated",
    op="gated_attention_of_weave",
    signature="(q, k, v, gate, cache, meta) -> out",
    facts=("num_heads", "num_kv_heads", "head_dim"),
    parts=("attention.write", "attention.run"),
    examples="weave_kernels:GATED",
)
SHARED = OpContract(
    id="weave.shared",
    op="shared_linear_of_weave",
    signature="(total, x, weight, bias) -> out",
    facts=("size",),
    parts=("linear",),
    examples="weave_kernels:SHARED",
    mutates_args=("total",),
    weights=("weight",),
)
DEEP = OpContract(
    id="weave.deep",
    op="deep_linear_of_weave",
    signature="(total, x, weight, bias) -> out",
    parts=("shared_linear_of_weave",),
)
KERNELS = {
    GATED: ("gated", "gated_quick", "gated_early", "gated_open"),
    SHARED: ("shared", "shared_quick", "shared_still", "shared_greedy"),
}

def spec(contract, name, tier, parts=(), **others):
    where = {"op": contract.op, "implementation": f"weave_kernels:{name}"}
    return KernelSpec(id=f"weave.{name}", kind="op", tier=tier, parts=contract.parts, **where, **others)

@hookimpl
def llmk_ops():
    found = [GATED, SHARED, DEEP]
    for contract, names in KERNELS.items():
        found += [spec(contract, name, Tier.NATIVE if i else Tier.REFERENCE, score=-i) for i, name in enumerate(names)]
    return found

def describe(checkpoint):
    sizes = {"num_layers": 1, "hidden_size": 48, "vocab_size": 64, "max_model_len": 128, "num_parameters": 1}
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    ops = (
        OpFacts(site="gated", op=GATED.op, facts=heads, attention="attention"),
        OpFacts(site="shared", op=SHARED.op, facts={"size": 48}, linear="up"),
    )
    return ModelFacts(
        architecture="WeaveForCausalLM", model="", dtype="float32", ops=ops,
        attention=(AttentionFacts(num_layers=1, **heads),),
        linear=(LinearFacts(site="up", in_features=48, out_features=32),),
        **sizes,
    )

@hookimpl
def llmk_models():
    where = {"implementation": "weave_kernels:GATED", "describe": "weave_specs:describe"}
    return [ModelSpec(id="weave.model", architectures=("WeaveForCausalLM",), **where)]
"""
KERNELS = """
from llmk.reference.op_examples import OpExamples

def heads(site):
    names = ("num_heads", "num_kv_heads", "head_dim")
    return ({name: getattr(site, name) for name in names},) if site.latent_dim is None else ()

def rows_of_heads(draw, facts, rows):
    query, key = ((rows, facts[count], facts["head_dim"]) for count in ("num_heads", "num_kv_heads"))
    return draw.floats(*query), draw.floats(*key), draw.floats(*key), draw.floats(*query)

def rows_and_total(draw, facts, rows):
    return draw.floats(rows, facts["in_features"]), draw.floats(rows, facts["size"])

GATED = OpExamples(heads, rows_of_heads, by_row=("q", "k", "v", "gate"), wide=("q", "k", "v"))
SHARED = OpExamples(lambda site: ({"size": site.in_features},), rows_and_total, by_row=("total", "x"))

def gated(parts):
    '''Attention, each element times a gate.'''
    def op(q, k, v, gate, cache, meta, **scaled):
        parts["attention.write"](k, v, cache, meta, **scaled)
        return parts["attention.run"](q, cache, meta, **scaled) * gate
    return op

gated_quick = gated

def gated_early(parts):
    def op(q, k, v, gate, cache, meta, **scaled):
        out = parts["attention.run"](q, cache, meta, **scaled) * gate
        parts["attention.write"](k, v, cache, meta, **scaled)
        return out
    return op

def gated_open(parts):
    good = gated(parts)
    return lambda q, k, v, gate, *rest, **scaled: good(q, k, v, gate.clamp(min=0), *rest, **scaled)

def shared(parts):
    '''``x`` is added to ``total``, in place; returns the linear kernel's result of the sum.'''
    def op(total, x, weight, bias):
        total += x
        return parts["linear"](total, weight, bias)
    return op

shared_quick = shared

def shared_still(parts):
    return lambda total, x, weight, bias: parts["linear"](total + x, weight, bias)

def shared_greedy(parts):
    good = shared(parts)
    def op(total, x, weight, bias):
        out = good(total, x, weight, bias)
        x.zero_()
        return out
    return op
"""


@pytest.fixture
def wheel(site: Callable[..., str]) -> str:
    return site("weave", SPECS, weave_kernels=KERNELS)


@pytest.fixture
def shop(bench: Bench, wheel: str) -> Bench:
    """A bench where the wheel is installed."""
    return replace(bench, registry=Registry.discover(load(environ={}).config.plugins))


def spec(bench: Bench, name: str) -> KernelSpec:
    found = next(kernel.spec for kernel in bench.registry.kernels("op") if kernel.spec.id == f"weave.{name}")
    return replace(found, needs=replace(found.needs, dtypes=("float32",)))


def test_kinds_of_sites_are_those_of_all_parts(shop: Bench) -> None:
    registry = shop.registry
    assert registry.site_kinds("gated_attention_of_weave") == {"attention"}
    assert registry.site_kinds("deep_linear_of_weave") == {"linear"}
    assert registry.site_kinds("add_rms_norm_gate_up_silu") == {"linear"}
    assert registry.site_kinds("rms_norm") == registry.site_kinds("unheard_of") == frozenset()


@pytest.mark.parametrize("op", ["gated_attention_of_weave", "shared_linear_of_weave"])
def test_good_contracts_pass(shop: Bench, op: str) -> None:
    check_good("op_contract", shop.registry.contracts[op], shop)


@pytest.mark.parametrize("name", ["gated", "gated_quick", "shared", "shared_quick"])
def test_good_ones_pass(shop: Bench, name: str) -> None:
    check_good("op", spec(shop, name), shop)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("gated_early", "a step of 3 requests"),
        ("gated_open", "a step of 3 requests"),
        ("shared_still", "tensor 0 of the arguments, written in place"),
        ("shared_greedy", "tensor 1 of the arguments, an input"),
    ],
)
def test_planted_defects_are_found(shop: Bench, name: str, place: str) -> None:
    found = failed("op", spec(shop, name), shop)
    assert any(case.startswith("agrees with the reference") and place in text for case, text in found.items()), found


def booted(tmp_path: Path, **flags: Any) -> Boot:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "architectures": ["WeaveForCausalLM"]}))
    common = {"model.path": str(checkpoint), "platform.use": "cpu", "platform.measurements": str(tmp_path / "times")}
    return boot(load({**common, **flags}, environ={}), verify=False)


def test_they_are_measured(wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "COUNTS", (17, 24))  # more than are recorded
    monkeypatch.setattr(tune, "_ROUND", 1e-4)
    said: list[str] = []
    path = Tuner(booted(tmp_path), said.append, frozenset({"gated", "shared"})).run()
    assert path is not None
    by_op = {each["query"]["op"]: each["microseconds"]["24"] for each in json.loads(path.read_text())["measured"]}
    assert set(by_op["gated_attention_of_weave"]) >= {"weave.gated", "weave.gated_quick"}
    assert set(by_op["shared_linear_of_weave"]) == {"weave.shared", "weave.shared_quick", "weave.shared_greedy"}
    text = "\n".join(said)
    assert "weave.gated_open is left out: WrongResult" in text
    assert "weave.shared_still is left out: WrongResult" in text, "what it should change in place is compared"


@pytest.mark.parametrize("beside", ["shared_quick", "shared_still"])
def test_shadows_compare_what_is_changed(wheel: str, tmp_path: Path, beside: str) -> None:
    flags = {"select.op.use": {"shared": "weave.shared"}, "select.op.shadow": {"shared": f"weave.{beside}"}}
    plan = shadowed(booted(tmp_path, **flags, **{"select.op.shadow_rate": 1.0})).plan
    build = Build(plan, dtype=torch.float32, device=torch.device("cpu"), load_object=load_object)
    kernel = build.kernel("op", "shared", linear="up")
    assert build.shadows is not None
    assert build.shadows.start_step()
    weight = build.linear("up").prepare({"weight": torch.randn(32, 48)})
    kernel(torch.randn(3, 48), torch.randn(3, 48), weight, None)
    (compared,) = build.shadows.take()
    assert [shape for shape, _ in compared.results] == [[3, 32], [3, 48]], "what is returned and what is changed"
    assert compared.error is not None
    assert (float(compared.error) > 0.1) == (beside == "shared_still")
