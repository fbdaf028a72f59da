"""Measuring kernels: what is run, what is kept, and what is not believed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llmk.api import Plan
from llmk.config import load
from llmk.engine.measuring import tune
from llmk.engine.measuring.benchmark_inputs import BenchmarkInputs
from llmk.engine.measuring.tune import Tuner
from llmk.kernel.loader import load_object
from llmk.nn.build import Build
from llmk.planning.boot import Boot, boot
from llmk.reference.compare import relative_error, tensors_of
from llmk_testing.checkpoints import write_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))

from wheelhouse import Wheelhouse

OTHERS = """
import time
import torch

def quick(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)

def wrong(x, weight, bias):
    return quick(x, weight, bias) * (1.01 if x.shape[0] > 2 else 1)

def broken(x, weight, bias):
    raise RuntimeError("out of luck")

@hookimpl
def llmk_linear_kernels():
    return [
        KernelSpec(
            id=f"other.{name}", kind="linear", implementation=f"plug_other:{name}", tier=Tier.VENDOR,
            bands=(TokenBand(1, stop),),
        )
        for name, stop in (("quick", 3), ("wrong", 99), ("broken", 99))
    ]

def alike(kind, where, **others):
    where = f"llmk.reference.{where}"
    return [KernelSpec(id=f"other.{kind}", kind=kind, implementation=where, tier=Tier.VENDOR, **others)]

@hookimpl
def llmk_attention_backends():
    return alike("attention", "attention.paged:ReferenceAttention", layout="reference")

@hookimpl
def llmk_moe_kernels():
    return alike("moe", "moe:fused_moe")

@hookimpl
def llmk_ops():
    return alike("op", "norms:make_add_rms_norm", op="add_rms_norm", parts=("rms_norm",))
"""

EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wheelhouse]:
    """Few and short measurements, of the core's kernels and of another wheel's."""
    monkeypatch.setattr(tune, "COUNTS", (1, 2, 8))
    monkeypatch.setattr(tune, "_ROUND", 1e-4)
    house = Wheelhouse(tmp_path / "site")
    house.install("other", OTHERS)
    yield house
    house.close()


def settings(house: Wheelhouse, checkpoint: Path, **others: object) -> dict[str, object]:
    """Of all that is installed, the CPU's platform, model families, the core and the other wheel."""
    disabled = [name for name in house.flags()["plugins.disable"] if name not in ("cpu", "models")]
    folder = str(house.folder.parent / "measured")
    common = {"model.path": str(checkpoint), "platform.measurements": folder, "plugins.disable": disabled}
    return {
        **common,
        "platform.use": "cpu",
        "platform.threads": 1,
        "select.linear.avoid": ["cpu.linear", "cpu.linear_torch"],
        **others,
    }


def unrecorded(*arguments: Any) -> Tuner:
    """A tuner on a platform without graphs, in which the other wheel's kernels could not be recorded."""
    tuner = Tuner(*arguments)
    tuner.platform.graphs = None
    return tuner


@pytest.mark.slow
def test_the_plan_follows_what_was_measured(house: Wheelhouse, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    booted = boot(load(settings(house, checkpoint), environ={}), verify=False)
    said: list[str] = []
    path = unrecorded(booted, said.append).run()
    assert path is not None
    data = json.loads(path.read_text())
    assert set(data["versions"]) >= {"torch", "llmk-core", "other-wheel"}
    by_site = {(each["query"]["kind"], each["query"].get("out_features")): each for each in data["measured"]}
    assert {kind for kind, _ in by_site} == {"attention", "linear", "op"}
    up = by_site["linear", 224]["microseconds"]
    assert set(up) == {"1", "2", "8"}
    assert set(up["2"]) == {"reference.linear", "other.quick"}, "of references the best alone"
    assert "other.quick" not in up["8"], "it is not offered for so many"
    lines = "\n".join(said)
    assert "other.wrong is left out: WrongResult: at 8 tokens it differs from the reference by 1.0e-02" in lines
    assert "other.broken is left out: RuntimeError: out of luck" in lines
    plan = boot(load(settings(house, checkpoint), environ={}), verify=False).plan
    for choice in plan.choices:
        if choice.kind == "linear":
            assert choice.pieces[0].why.startswith("measured "), choice
            assert {"other.wrong", "other.broken"}.isdisjoint(piece.id for piece in choice.pieces)


def test_sparse_models_have_their_experts_measured(house: Wheelhouse, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3_moe", num_hidden_layers=1, mlp_only_layers=[], **EXPERTS)
    said: list[str] = []
    seen: list[tuple[int, int]] = []
    booted = boot(load(settings(house, checkpoint), environ={}), verify=False)
    unrecorded(booted, said.append, frozenset(), lambda done, total: seen.append((done, total))).run()
    assert [done for done, _ in seen] == list(range(len(seen)))
    totals = [total for _, total in seen]
    assert totals[0] > 10, "sites are counted at the start"
    assert all(done < total for done, total in seen[:-1])
    assert totals[-1] == len(seen) - 1, "ops that turn out slow are composed of others, which become sites"
    lines = "\n".join(said)
    for id in ("reference.fused_moe", "other.moe"):
        assert f"us by {id}" in lines


def test_equal_sites_get_equal_inputs_no_matter_which_kernel_is_chosen(house: Wheelhouse, tmp_path: Path) -> None:
    """Also where a kernel ran with other token counts before."""
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    results = []
    for id, counts in (("reference.linear", (1, 4, 8)), ("reference.linear_invariant", (8,))):
        flags = settings(house, checkpoint, **{"select.linear.use": id, "select.linear.avoid": []})
        booted = boot(load(flags, environ={}), verify=False)
        build = Build(booted.plan, dtype=torch.float32, device=torch.device("cpu"), load_object=load_object)
        trial = BenchmarkInputs(build, booted.facts, booted.registry).of(booted.plan.choice("linear", "gate_up"))
        assert trial is not None
        assert trial.sets > 1
        (*_, run) = (trial.at(count) for count in counts)
        results.append(run(trial.sets - 1))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "latent": (
        "deepseek_v2",
        {"kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 0}
        | {"n_group": 1, "topk_group": 1},
    ),
    "norm offset": ("gemma2", {"head_dim": 16, "sliding_window": 24}),
}


@pytest.mark.parametrize("model", MODELS)
def test_inputs_are_known_for_the_queries_of_models(house: Wheelhouse, tmp_path: Path, model: str) -> None:
    """But for recurrent state, the step's layout, and parts whose sizes are unknown."""
    kind, sizes = MODELS[model]
    checkpoint = write_checkpoint(tmp_path / "model", kind, num_hidden_layers=2, **sizes)
    missing = unmeasured(boot(load(settings(house, checkpoint), environ={}), verify=False))
    assert missing <= {"update_rows", "build_step", "accept_drafts", "rms_norm"}, missing


@torch.inference_mode()
def unmeasured(booted: Boot) -> set[str]:
    """Ops, and sites of other kinds, for which nothing can be made; all others are run at two counts."""
    missing = set()
    for choice in booted.plan.all_choices():
        if choice.query is None:
            continue
        roots = (choice, *(c for c in booted.plan.choices if c.site != choice.site))
        device = torch.device("cpu")
        build = Build(
            replace(booted.plan, choices=roots),
            dtype=torch.float32,
            device=device,
            load_object=load_object,
            checkpoint=booted.checkpoint,
        )
        trial = BenchmarkInputs(build, booted.facts, booted.registry).of(choice)
        if trial is None:
            missing.add(choice.op or choice.site)
            continue
        for count in (1, 3):
            found = list(tensors_of(trial.at(count)(0)))
            again = list(tensors_of(trial.at(count)(0)))
            assert found
            assert float(relative_error(found, again)) < 1e-6, (choice.site, count)
    return missing


@pytest.mark.parametrize("method", ["fp8", "fp8_block"])
def test_quantized_weights_are_made_by_the_method(house: Wheelhouse, tmp_path: Path, method: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3_moe", num_hidden_layers=1, mlp_only_layers=[], **EXPERTS)
    flags = settings(house, checkpoint, **{"model.quantization": method})
    flags["plugins.disable"] = [name for name in flags["plugins.disable"] if name != "quantization"]
    booted = boot(load(flags, environ={}), verify=False)
    assert {c.query.weight_format for c in booted.plan.choices if c.kind == "moe"} == {
        f"fp8_{'block' if 'b' in method else 'channel'}"
    }
    assert unmeasured(booted) <= {"update_rows", "build_step", "accept_drafts", "rms_norm"}


def test_only_what_is_named_is_measured(house: Wheelhouse, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    said: list[str] = []
    Tuner(boot(load(settings(house, checkpoint), environ={}), verify=False), said.append, frozenset({"down"})).run()
    assert {line.partition(",")[0].partition(":")[0] for line in said} == {"linear down"}


def test_measurements_lapse_with_another_version_of_the_wheel(house: Wheelhouse, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)

    def plan() -> Plan:
        return boot(load(settings(house, checkpoint), environ={}), verify=False).plan

    booted = boot(load(settings(house, checkpoint), environ={}), verify=False)
    unrecorded(booted, print, frozenset({"down"})).run()
    why = plan().choice("linear", "down").pieces[0].why
    assert re.fullmatch(r"measured \d\.\d\dx of \S+ at 1 token, \d{4}-\d\d-\d\d", why), why
    info = next(house.folder.glob("other_wheel*"))
    (info / "METADATA").write_text((info / "METADATA").read_text().replace("Version: 1.0", "Version: 1.1"))
    info.rename(info.with_name("other_wheel-1.1.dist-info"))
    house._forget()
    assert not plan().choice("linear", "down").pieces[0].why.startswith("measured")
    assert any("they are of other-wheel 1.0, installed is 1.1" in warning for warning in plan().warnings)


class PlayedGraphs:
    """Records nothing and runs again; a platform with graphs is not here."""

    recorded = 0

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        self.recorded += 1
        return run

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        return first(), second()


@pytest.mark.slow
def test_what_cannot_be_recorded_is_not_kept_for_steps_that_decode(house: Wheelhouse, tmp_path: Path) -> None:
    """It would keep the whole step from being recorded."""
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    flags = settings(house, checkpoint, **{"scheduler.max_num_seqs": 2})
    tuner = Tuner(boot(load(flags, environ={}), verify=False), lambda line: None)
    tuner.platform.graphs = graphs = PlayedGraphs()
    path = tuner.run()
    assert path is not None
    times = [each["microseconds"] for each in json.loads(path.read_text())["measured"]]
    assert graphs.recorded
    kept = {id for columns in times for count in ("1", "2") for id in columns.get(count, {})}
    assert "reference.linear" in kept
    assert kept.isdisjoint({"other.quick", "other.attention", "reference.attention"})
    assert any("other.attention" in columns.get("8", {}) for columns in times)
