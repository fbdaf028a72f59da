"""What is chosen for NVIDIA GPUs, told on any machine: the choices that must not change unnoticed."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmk.api import Choice, Piece, Plan, SelectionError
from llmk.config import load
from llmk.engine.device.graphs import StepShape, verifying_shapes, why_not_recorded
from llmk.planning.boot import Boot, boot
from llmk.planning.memory import forecast

COMMON = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 151936, "head_dim": 128,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
DENSE = COMMON | {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
SPARSE = COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": True,
}  # fmt: skip
RECURRENT = {
    "architectures": ["Mamba2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 50288,
    "expand": 2, "num_heads": 64, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
LATENT = COMMON | {
    "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944, "vocab_size": 102400,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
}  # fmt: skip
GROUPED = LATENT | {
    "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 1536, "num_attention_heads": 128, "hidden_size": 7168,
    "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
}  # fmt: skip
NEMOTRON = COMMON | {
    "architectures": ["NemotronHForCausalLM"], "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "num_attention_heads": 32,
    "num_key_value_heads": 8, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
}  # fmt: skip
GRANITE = COMMON | {
    "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 1536, "intermediate_size": 512, "head_dim": 128,
    "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48,
    "mamba_d_head": 64, "mamba_d_state": 128, "num_local_experts": 64, "num_experts_per_tok": 6,
    "shared_intermediate_size": 1024, "residual_multiplier": 0.22, "embedding_multiplier": 12, "logits_scaling": 6,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
}  # fmt: skip
FALCON = COMMON | {
    "architectures": ["FalconH1ForCausalLM"], "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 44,
    "num_attention_heads": 12, "num_key_value_heads": 2, "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128,
    "mamba_d_state": 256, "mlp_multipliers": [0.88, 0.08], "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.35],
    "embedding_multiplier": 5.65, "ssm_in_multiplier": 0.5,
}  # fmt: skip
LFM2 = COMMON | {
    "architectures": ["Lfm2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 12288, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "layer_types": ["conv", "conv", "full_attention", "conv"] * 4,
}  # fmt: skip
FALCON_MAMBA = COMMON | {
    "architectures": ["FalconMambaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 64, "time_step_rank": 256,
}  # fmt: skip
NEMOTRON_3 = COMMON | {
    "architectures": ["NemotronHForCausalLM"], "hidden_size": 2688, "intermediate_size": 1856, "num_hidden_layers": 8,
    "hybrid_override_pattern": "MEMEM*EM", "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "n_routed_experts": 128,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
}  # fmt: skip
MIMO = COMMON | {
    "architectures": ["MiMoV2FlashForCausalLM"], "hidden_size": 4096, "intermediate_size": 16384,
    "num_hidden_layers": 12, "num_attention_heads": 64, "num_key_value_heads": 4, "swa_num_key_value_heads": 8,
    "head_dim": 192, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
}  # fmt: skip
HYBRIDS = {"nemotron": NEMOTRON, "granite": GRANITE, "falcon": FALCON, "lfm2": LFM2, "falcon-mamba": FALCON_MAMBA}
MODELS = {"dense": DENSE, "sparse": SPARSE}
CONFIGS = MODELS | HYBRIDS | {"recurrent": RECURRENT, "latent": LATENT, "grouped": GROUPED}
CONFIGS |= {"nemotron 3": NEMOTRON_3, "mimo": MIMO}
COMPOSED = {
    f"reference.{op}"
    for op in ("add_rms_norm_gate_up_silu", "gate_up_silu", "add_rms_norm_router", "add_rms_norm_linear")
}
"""References that only call their parts, each a kernel."""
ON_REQUEST = {"reference.apply_bias", "reference.match_suffixes", "reference.allow_tokens"}
LINEARS = {"dense": ("qkv", "out", "gate_up", "down", "lm_head"), "sparse": ("qkv", "out", "moe.router", "lm_head")}
GPUS = ["cuda/h100", "cuda/h200", "cuda/a100", "cuda/b200", "cuda/l40s", "cuda/sm_90", "cuda/sm_80", "cuda/sm_100"]
HOPPER = {"cuda/h100", "cuda/h200", "cuda/sm_90"}


def start(folder: Path, model: str, on: str, **flags: Any) -> Boot:
    (folder / "config.json").write_text(json.dumps(CONFIGS[model]))
    settings = {"model.path": str(folder), "platform.measurements": "none", **flags}
    return boot(load(settings, environ={}), on=on, verify=False)


def at(choice: Choice, tokens: int) -> Piece:
    (piece,) = (piece for piece in choice.pieces if piece.start <= tokens < piece.stop)
    return piece


def reasons(plan: Plan, kind: str, site: str, id: str) -> list[str]:
    (rejection,) = (out for out in plan.choice(kind, site).rejected if out.id == id)
    return [reason.code for reason in rejection.reasons]


@pytest.mark.parametrize("on", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_hot_sites_have_their_kernels(tmp_path: Path, model: str, on: str) -> None:
    plan = start(tmp_path, model, on).plan
    assert plan.dtype == "bfloat16"
    assert not plan.warnings
    attention = "triton.attention_specialized" if on in HOPPER else "triton.attention"
    assert {piece.id for piece in plan.choice("attention", "attention").pieces} == {attention}
    for site in LINEARS[model]:
        choice = plan.choice("linear", site)
        assert at(choice, 4096).id == "cuda.linear", "the library keeps the tensor cores busy"
        assert at(choice, 1).id.partition(".")[0] in ("cuda", "triton")
        assert {piece.tier for piece in choice.pieces} == {"portable"}
    for site in ("rms_norm", "add_rms_norm", "embedding", "sample", "build_step"):
        assert plan.choice("op", site).id == f"triton.{site}"
    assert plan.choice("op", "attention.whole").id == "triton.qk_norm_rope_attention"
    assert at(plan.choice("op", "norm_qkv"), 1).id == "triton.add_rms_norm_linear"
    if model == "sparse":
        assert at(plan.choice("op", "norm_moe.router"), 1).id == "triton.add_rms_norm_router"
        router = plan.choice("linear", "moe.router")
        assert at(router, 64).id == ("triton.linear_small_n" if on in HOPPER else "cuda.linear")
        assert at(router, 65).id == "cuda.linear"
    assert not why_not_recorded(plan, [StepShape(64, 64), *verifying_shapes(256, 4)])


@pytest.mark.parametrize("on", GPUS)
@pytest.mark.parametrize("model", ["latent", "grouped"])
def test_nothing_of_latent_attention_and_grouped_experts_is_left_to_references(
    tmp_path: Path, model: str, on: str
) -> None:
    plan = start(tmp_path, model, on).plan
    assert plan.choice("attention", "latent_attention").id == "triton.attention_latent"
    assert plan.choice("op", "latent_attention.whole").id == "triton.latent_attention"
    assert plan.choice("moe", "moe").id == "triton.fused_moe"
    pieces = {piece.id for choice in plan.choices for each in choice.with_parts() for piece in each.pieces}
    assert {id for id in pieces if id.startswith("reference.")} <= COMPOSED | ON_REQUEST
    assert not why_not_recorded(plan, [StepShape(64, 64), *verifying_shapes(256, 4)])


@pytest.mark.parametrize("on", GPUS)
@pytest.mark.parametrize("model", ["nemotron 3", "mimo"])
def test_nothing_of_experts_without_gates_and_values_of_another_width_is_either(
    tmp_path: Path, model: str, on: str
) -> None:
    plan = start(tmp_path, model, on).plan
    assert plan.choice("moe", "moe").id == "triton.fused_moe"
    if model == "mimo":
        for site in ("attention", "sliding_attention"):
            assert plan.choice("attention", site).id == "triton.attention"
            assert plan.choice("op", f"{site}.whole").id == "triton.qk_norm_rope_attention"
    pieces = {piece.id for choice in plan.choices for each in choice.with_parts() for piece in each.pieces}
    assert {id for id in pieces if id.startswith("reference.")} <= COMPOSED | ON_REQUEST
    assert not why_not_recorded(plan, [StepShape(64, 64), *verifying_shapes(256, 4)])


@pytest.mark.parametrize("on", ["cuda/h100", "cuda/sm_80"])
def test_steps_of_recurrent_models_are_recorded(tmp_path: Path, on: str) -> None:
    plan = start(tmp_path, "recurrent", on).plan
    assert plan.choice("op", "state_space_mixer").id == "triton.state_space_mixer"
    assert plan.choice("op", "add_rms_norm_fp32_residual").id == "triton.add_rms_norm_fp32_residual"
    assert not why_not_recorded(plan, [StepShape(64, 64), StepShape(512, 32)])


@pytest.mark.parametrize("on", ["cuda/h100", "cuda/sm_80"])
@pytest.mark.parametrize("model", HYBRIDS)
def test_nothing_of_hybrids_is_left_to_references(tmp_path: Path, model: str, on: str) -> None:
    plan = start(tmp_path, model, on).plan
    pieces = {piece.id for choice in plan.choices for each in choice.with_parts() for piece in each.pieces}
    composed = COMPOSED | {"reference.add_rms_norm_linear", "reference.scaled_embedding"}
    assert {id for id in pieces if id.startswith("reference.")} <= composed | ON_REQUEST
    assert not why_not_recorded(plan, [StepShape(64, 64), StepShape(512, 32)])


def test_what_fits_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    assert re.search(
        r"GiB cache \([\d,]+ blocks, [\d,]+ tokens\)", str(forecast(start(tmp_path, "dense", "cuda/h200")))
    )
    assert "blocks, requests of any length)" in str(forecast(start(tmp_path, "recurrent", "cuda/h200")))
    too_large = str(forecast(start(tmp_path, "grouped", "cuda/h200")))
    assert re.search(
        r"Does not fit: the weights need [\d.]+ GiB .*140\.\d GiB is free; .*--parallel\.tensor", too_large
    )


def test_flashinfer_says_what_it_lacks_of_a_device(tmp_path: Path) -> None:
    found = reasons(start(tmp_path, "dense", "cuda/t4").plan, "attention", "attention", "cuda.flashinfer")
    assert set(found) - {"package_missing"} == {"arch"}
    pinned = {"select.attention.use": "cuda.flashinfer", "cache.dtype": "float16"}
    with pytest.raises(SelectionError, match="wanted float16, found bfloat16"):
        start(tmp_path, "dense", "cuda/h200", **pinned)


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="flashinfer-python is installed")
def test_flashinfer_pinned_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match=re.escape("pip install 'flashinfer-python>=0.6'")):
        start(tmp_path, "dense", "cuda/h200", **{"select.attention.use": "cuda.flashinfer"})


def test_flashinfer_that_is_installed_waits_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution of that name: matching reads metadata alone."""
    from llmk.api import matching

    info = tmp_path / "site/flashinfer_python-0.6.13.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 0.6.13\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    matching._check_package.cache_clear()
    try:
        plan = start(tmp_path, "dense", "cuda/h200").plan
        assert plan.choice("attention", "attention").id == "triton.attention_specialized"
        assert reasons(plan, "attention", "attention", "cuda.flashinfer") == ["opt_in"]
        named = start(tmp_path, "dense", "cuda/h200", **{"select.attention.prefer": ["cuda.flashinfer"]}).plan
        assert named.choice("attention", "attention").id == "cuda.flashinfer"
        assert named.choice("op", "attention.whole").id.startswith("reference.")
    finally:
        matching._check_package.cache_clear()


def test_sizes_follow_the_memory_of_the_device_that_is_named(tmp_path: Path) -> None:
    booted = {on: start(tmp_path, "sparse", f"cuda/{on}") for on in ("h100", "h200", "b200")}
    memory = {on: each.platform_facts.memory_bytes >> 30 for on, each in booted.items()}
    assert memory == {"h100": 79, "h200": 140, "b200": 179}
    assert {each.settings.config.cache.memory_share for each in booted.values()} == {0.95}
    assert all(each.settings.config.scheduler.max_num_batched_tokens == 8192 for each in booted.values())
