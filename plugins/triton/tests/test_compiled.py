"""Kernels compile for GPUs that aren't here, within what those have. `make kernels` compiles all that ship; here it is
one model's, in its usual dtype."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from four_models import MODELS
from further_models import FURTHER
from launched import kernels_of

import llmk_triton
from llmk.config import load
from llmk.kernel.registry import Registry
from llmk.planning.boot import boot

KINDS = ("attention", "linear", "moe", "op")
SCRIPT = Path(__file__).with_name("ahead_of_time.py")
ALL = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx950", "hip:gfx1100")
AMD = tuple(
    f"hip:{arch}" for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")
)
RESOURCES = SCRIPT.with_name("resources.json")
NVIDIA_ONLY = {"list_work_kernel", "prefill_specialized_kernel"}
"""Named in branches that are taken for specialized warps alone, which Hopper has."""
BY_TOKEN_NEVER = {
    *("convolve_kernel", "delta_chunks_kernel", "delta_writes_kernel", "lightning_chunks_kernel"),
    *("kimi_scores_kernel", "kimi_writes_kernel", "kimi_chunks_kernel", "scan_chunks_kernel"),
}
"""Named in what both variants of a layer share, and launched for chunks alone."""
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}}
QUANTIZED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "plain": ({}, {}),
    "int4": (AWQ, {}),
    **{name: ({}, {"model.quantization": name}) for name in ("fp8", "fp8_block", "int8")},
}
"""By how weights are stored: what the checkpoint's configuration says, and options."""
LATENT = ("cuda:80", "cuda:90", "hip:gfx942")
HOPPER_RDNA, HOPPER_CDNA = ("cuda:90", "hip:gfx1100"), ("cuda:90", "hip:gfx942")


@cache
def compiled(targets: tuple[str, ...], only: str) -> list[dict[str, Any]]:
    """The kernels of some cases, for all targets in one process, other than this one: here Triton interprets."""
    command = [sys.executable, str(SCRIPT), *targets, "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of(target: str, among: tuple[str, ...], only: str) -> list[dict[str, Any]]:
    """Those for one target, of which all that are ``among`` the test's are compiled together."""
    return [kernel for kernel in compiled(among, only) if kernel["target"] == target]


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL)
def test_attention(target: str) -> None:
    found = {kernel["kernel"]: kernel for kernel in of(target, ALL, "^mixed qwen3-8b bf16$")}
    names = ("rotate_and_write", "write", "schedule", "decode", "prefill_schedule", "prefill", "zero_padding")
    assert set(found) == {f"{name}_kernel" for name in names}
    assert found["decode_kernel"]["matrix"] > 0
    assert found["prefill_kernel"]["matrix"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_CDNA)
def test_attention_over_an_int8_cache(target: str) -> None:
    found = {kernel["kernel"]: kernel for kernel in of(target, HOPPER_CDNA, "^int8 cache, mixed qwen3-8b bf16$")}
    names = ("write_int8", "schedule", "decode", "prefill_schedule", "prefill", "zero_padding")
    assert set(found) == {f"{name}_kernel" for name in names}
    assert all(found[f"{name}_kernel"]["matrix"] > 0 for name in ("decode", "prefill"))


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_CDNA)
def test_an_activation_before_a_gemm(target: str) -> None:
    found = of(target, HOPPER_CDNA, "^activate linear 2560x10240 x(1|16) bf16$")
    assert {kernel["kernel"] for kernel in found} <= {"gemv_kernel", "skinny_kernel"}
    assert len(found) == 2
    assert not any(kernel["stack"] for kernel in found)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3-8b", "gemma2-9b"])
def test_specialized_prefill(model: str) -> None:
    found = {kernel["kernel"]: kernel for kernel in of("cuda:90", ("cuda:90",), f"^specialized {model} bf16$")}
    names = ("prefill_schedule", "list_work", "prefill", "prefill_specialized", "zero_padding")
    assert set(found) == {f"{name}_kernel" for name in names}
    assert found["prefill_specialized_kernel"]["matrix"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", LATENT)
def test_latent_attention(target: str) -> None:
    found = {k["kernel"]: k for k in of(target, LATENT, "^latent (decode|mixed|prompt) (deepseek-v2-lite|tiny) bf16$")}
    schedules = {"schedule_kernel", "prefill_schedule_kernel", "place_rows_kernel"}
    cheap = {"latent_merge_kernel", "latent_value_kernel", "write_latent_kernel", "zero_padding_kernel"}
    gemms = {"latent_query", "latent_decode", "latent_prefill", "expand", "expanded_prefill"}
    assert set(found) == {*schedules, *cheap, *(f"{name}_kernel" for name in gemms)}
    assert all(found[f"{name}_kernel"]["matrix"] > 0 for name in gemms - {"latent_query"})


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_CDNA)
def test_selected_attention(target: str) -> None:
    found = {k["kernel"]: k for k in of(target, HOPPER_CDNA, "^selected (decode|prompt) deepseek-v3.2 bf16$")}
    gemms = {"index_scores_kernel", "selected_attention_kernel"}
    assert set(found) == {*gemms, "selected_merge_kernel", "write_latent_kernel"}
    assert all(found[name]["matrix"] > 0 for name in gemms)


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_RDNA)
def test_elementwise(target: str) -> None:
    found = [kernel["kernel"] for kernel in of(target, HOPPER_RDNA, "^elementwise 4096x12288 bf16$")]
    assert Counter(found) == {
        "activate_kernel": 5,
        "embedding_kernel": 2,
        "gated_kernel": 3,
        "layer_norm_kernel": 2,
        "norm_kernel": 6,
        "sigmoid_gate_kernel": 2,
        "softcap_kernel": 1,
        "xielu_kernel": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_CDNA)
def test_gemms(target: str) -> None:
    several = "linear 1024x3072 x(1|16)|norm gate up 3072x1024 x(1|16)|norm router 128x2048 x1|router 60x4096 x64"
    found = of(target, HOPPER_CDNA, f"^({several}) bf16$")
    assert len(found) == 6
    assert {kernel["kernel"] for kernel in found} == {"gemv_kernel", "skinny_kernel"}
    for kernel in found:
        if kernel["kernel"] == "gemv_kernel":
            assert kernel["shared"] < 1024, "what a thread loaded went to others, other than sums"
        else:
            assert kernel["matrix"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", LATENT)
def test_int4_gemms(target: str) -> None:
    """Words reach the matrix instructions' operands through registers alone: on NVIDIA's GPUs two numbers at a time."""
    found = of(target, LATENT, "^int4 4096x4096 by (128|32 with zero points) x(1|256) bf16$")
    assert Counter(kernel["kernel"] for kernel in found) == {"int4_kernel": 4, "widen_kernel": 2}
    assert all(kernel["matrix"] > 0 for kernel in found if kernel["kernel"] == "int4_kernel")
    assert not any(kernel["stack"] for kernel in found)


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
def test_what_a_plan_takes_on_amds_chips(target: str) -> None:
    """A target at a time, since few are drawn."""
    found = compiled((target,), "^(decode qwen3-8b|linear 6144x4096 x16|experts qwen3-30b-a3b x128) bf16$")
    assert {"decode_kernel", "skinny_kernel", "gate_up_kernel"} <= {kernel["kernel"] for kernel in found}
    assert all(kernel["matrix"] for kernel in found if kernel["kernel"] in ("decode_kernel", "skinny_kernel"))
    assert not any(kernel["stack"] for kernel in found)


def test_what_was_compiled_fits() -> None:
    """The table in the docs: nothing spills, within what a workgroup has."""
    targets = json.loads(RESOURCES.read_text())
    assert set(targets) == set(AMD)
    for target, found in targets.items():
        limit = (163_840 if target == "hip:gfx950" else 65_536, 512 if target.startswith("hip:gfx9") else 256)
        for kernel, most in found["kernels"].items():
            assert (most["shared"] <= limit[0], most["registers"] <= limit[1]) == (True, True), (target, kernel)
            assert not most["stack"], (target, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("stored", QUANTIZED)
@pytest.mark.parametrize("target", AMD)
def test_every_kernel_of_a_plan_was_compiled(target: str, stored: str, tmp_path: Path) -> None:
    """For the chip that the plan is for, of dense models, of experts, of latent attention and of hybrids, and of plain
    models that launch other kernels: so what a plan chooses is in the table, and fits."""
    compiled = json.loads(RESOURCES.read_text())[target]["kernels"].keys()
    specs = {r.spec.id: r.spec for kind in KINDS for r in Registry.discover(load({}).config.plugins).kernels(kind)}
    more, options = QUANTIZED[stored]
    for config in (*MODELS.values(), *(FURTHER.values() if stored == "plain" else ())):
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        settings = load({"model.path": str(tmp_path), **options}, environ={})
        plan = boot(settings, on=target.replace("hip:", "rocm/"), verify=False).plan
        pieces = (piece for choice in plan.choices for each in choice.with_parts() for piece in each.pieces)
        kernels = {piece.id for piece in pieces if piece.tier != "reference"}
        chosen = sorted(id for id in kernels if id.startswith("triton."))
        assert "triton.sample" in chosen
        for id in chosen:
            module, _, name = specs[id].implementation.partition(":")
            launched = kernels_of(getattr(importlib.import_module(module), name))
            assert launched, id
            never = NVIDIA_ONLY | (BY_TOKEN_NEVER if id.endswith("_by_token") else set())
            assert launched - never <= compiled, (id, launched - never - compiled)


@pytest.mark.slow
def test_tma_tiles_leave_room_for_two_programs() -> None:
    found = compiled(("cuda:90",), r"^(linear|gate up) \S+ x(64|128) bf16$")
    assert len(found) == 8
    assert all(kernel["matrix"] > 0 and kernel["shared"] <= (227 << 10) // 2 - 1024 for kernel in found)
    assert not any(kernel["stack"] for kernel in found)


@pytest.mark.slow
def test_tuned_gemms_fit() -> None:
    folder = Path(llmk_triton.__file__).parent / "configs"
    for arch in sorted({file.name.split(".")[1] for file in folder.glob("*.json")}):
        target = arch.replace("sm_", "cuda:") if arch.startswith("sm_") else f"hip:{arch}"
        assert compiled((target,), f"^tuned {arch} "), f"nothing was compiled for {arch}"


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL)
def test_experts(target: str) -> None:
    found = {kernel["kernel"]: kernel for kernel in of(target, ALL, "^experts qwen3-30b-a3b x(1|128|1024) bf16$")}
    few, grouped = {"gate_up_few_kernel", "down_few_kernel"}, {"gate_up_kernel", "down_kernel"}
    assert set(found) == {*few, *grouped, "route_kernel", "select_kernel", "place_kernel", "sum_kernel"}
    assert all(found[name]["matrix"] > 0 for name in grouped)


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_CDNA)
def test_quantized_experts(target: str) -> None:
    found = of(target, HOPPER_CDNA, "^(int4|fp8_block) experts qwen3-30b-a3b x(1|64) bf16$")
    grouped = {kernel["kernel"] for kernel in found if kernel["matrix"]}
    assert {"experts_int4_kernel", *(("gate_up_kernel", "down_kernel") if target == "cuda:90" else ())} <= grouped
    assert not any(kernel["stack"] for kernel in found)


@pytest.mark.slow
@pytest.mark.parametrize("target", HOPPER_CDNA)
def test_sampling(target: str) -> None:
    found = {kernel["kernel"] for kernel in of(target, HOPPER_CDNA, "^(sampling fp32|batch state)$")}
    choosing = {"peak_kernel", "top_token_kernel", "narrow_kernel", "collect_kernel", "choose_kernel"}
    scoring = {"part_kernel", "merge_kernel", "count_kernel", "penalize_kernel", "mask_kernel"}
    state = {"build_step_kernel", "compute_slot_mapping_kernel", "append_tokens_kernel", "update_rows_kernel"}
    assert found == choosing | scoring | state | {"accept_drafts_kernel"}


@pytest.mark.slow
def test_limits_are_enforced() -> None:
    """What exceeds shared memory fails as it would on the device."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import shipped, ahead_of_time as aot\n"
        "from llmk_triton.attention import backend as attention\n"
        "from llmk_triton.common import targets as tiles\n"
        "attention.decode_configs = lambda *args: [tiles.DecodeConfig(tiles.Tile(16, 256, 4, 6), 4, 256)] * 2\n"
        "aot.driver.set_active(aot.StandIn('cuda:80'))\n"
        "shipped.CASES['decode qwen3-8b bf16']()\n"
    )
    command = [sys.executable, "-c", code, str(SCRIPT.parent)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"})
    assert "OutOfResources" in done.stderr, done.stderr
