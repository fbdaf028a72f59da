"""Adapters that can't be served: each is one clear error at the start."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft_adapters import change_config, change_tensors, write_adapter
from served import LLMK

from llmk import LLM
from llmk.api.errors import ConfigError
from llmk_testing.checkpoints import write_checkpoint

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 28, "kv_lora_rank": 24, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
    "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def good(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "good"
    return write_adapter(folder, base, seed=1, r=4, target_modules=["q_proj", "v_proj", "down_proj"])


def config(**fields: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **fields)


def tensors(**changed: torch.Tensor | None) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder, **changed)


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")


def truncated(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


FIRST = "base_model__model__model__layers__0__self_attn__q_proj__lora_"
BAD: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "gone": (shutil.rmtree, ["there is no folder"]),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), ["has no adapter_config.json"]),
    "no JSON": (lambda folder: (folder / "adapter_config.json").write_text("{"), ["can't be read as JSON"]),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), ["no adapter_model.safetensors"]),
    "pickled": (pickled, ["only pickled weights (adapter_model.bin)", "save it again as safetensors"]),
    "truncated": (truncated, ["truncated"]),
    "another type": (config(peft_type="IA3"), ["peft_type 'IA3'"]),
    "dora": (config(use_dora=True), ["use_dora = True"]),
    "bias": (config(bias="all"), ["bias = 'all'"]),
    "lora_bias": (config(lora_bias=True), ["lora_bias = True"]),
    "modules_to_save": (config(modules_to_save=["lm_head"]), ["modules_to_save = ['lm_head']"]),
    "parameters": (config(target_parameters=["mlp.experts.gate_up_proj"]), ["target_parameters ="]),
    "unknown field": (config(next_year={"on": True}), ["next_year = {'on': True}"]),
    "pissa": (config(init_lora_weights="pissa"), ["init_lora_weights = 'pissa'", "convert it to plain LoRA"]),
    "rank": (config(r=0), ["r = 0, not a rank"]),
    "rank of text": (config(r="4"), ["r = '4', not a rank"]),
    "alpha": (config(lora_alpha=None), ["lora_alpha = None"]),
    "rank pattern": (config(rank_pattern={"q_proj": 1.5}), ["rank_pattern of 'q_proj' = 1.5"]),
    "no targets": (config(target_modules=None), ["has no target_modules"]),
    "unknown target": (
        config(target_modules=["q_proj", "query_key_value"]),
        ["'query_key_value'", "which has down_proj, gate_proj"],
    ),
    "near target": (config(target_modules=["q_prj"]), ["did you mean 'q_proj'?"]),
    "expression": (config(target_modules="q_proj("), ["no regular expression"]),
    "expression of none": (config(target_modules="q_proj"), ["that the model doesn't have: 'q_proj'"]),
    "a number": (config(target_modules=7), ["target_modules = 7"]),
    "head": (config(target_modules=["q_proj", "lm_head"]), ["match lm_head, which is the LM head"]),
    "embedding": (config(target_modules=r".*(embed_tokens|q_proj)"), ["model.embed_tokens, which is an embedding"]),
    "layers": (config(layers_to_transform=["first"]), ["layers_to_transform = ['first']"]),
    "fewer targets": (
        config(target_modules=["q_proj", "v_proj"]),
        ["holds 6 tensors that the model has no place for", "mlp.down_proj.lora_A.weight"],
    ),
    "more targets": (
        config(target_modules=["q_proj", "k_proj", "v_proj", "down_proj"]),
        ["lacks 6 of the tensors", "layers.0.self_attn.k_proj.lora_A.weight"],
    ),
    "another rank": (config(r=8), ["has shape [4, 64], not [8, 64], by rank 8 (adapter_config.json)"]),
    "missing": (tensors(**{f"{FIRST}B__weight": None}), ["lacks 1 of the tensors", "q_proj.lora_B.weight"]),
    "shape": (
        tensors(**{f"{FIRST}A__weight": torch.zeros(4, 63)}),
        ["adapter_model.safetensors has shape [4, 63], not [4, 64]", "q_proj.lora_A.weight", "64 to 64 features"],
    ),
    "integers": (tensors(**{f"{FIRST}A__weight": torch.zeros(4, 64, dtype=torch.int8)}), ["is stored as I8"]),
    "not finite": (tensors(**{f"{FIRST}A__weight": torch.full((4, 64), torch.nan)}), ["not finite"]),
    "too large": (tensors(**{f"{FIRST}A__weight": torch.full((4, 64), 1e39, dtype=torch.float64)}), ["not finite"]),
    "unknown tensor": (
        tensors(**{"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(4)}),
        ["holds 1 tensors that the model has no place for", "lora_magnitude_vector"],
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_adapter(what: str, base: Path, good: Path, tmp_path: Path) -> None:
    spoil, expected = BAD[what]
    spoil(shutil.copytree(good, tmp_path / "bad"))
    with pytest.raises(ConfigError) as caught:
        LLM(str(base), adapters={"good": str(good), "bad": str(tmp_path / "bad")})
    assert caught.value.exit_code == 2
    for text in ["[adapters] bad: ", *expected, str(tmp_path / "bad")]:
        assert text in str(caught.value)


def test_another_models_width(good: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path, "llama", hidden_size=32)
    with pytest.raises(ConfigError, match=r"has shape \[4, 64\], not \[4, 32\], by rank 4 .* and 32 to 32 features"):
        LLM(str(other), adapters={"good": str(good)})


def test_experts(tmp_path: Path) -> None:
    """Named by tensors that the model has no place for, or by nothing else."""
    base = write_checkpoint(tmp_path / "moe", "qwen3_moe", **EXPERTS)
    folder = write_adapter(tmp_path / "attention", base, seed=1, r=2, target_modules=["q_proj"])
    change_tensors(
        folder, base_model__model__model__layers__0__mlp__experts__0__up_proj__lora_A__weight=torch.ones(2, 64)
    )
    change_config(folder, target_modules=["q_proj", "up_proj"])
    with pytest.raises(ConfigError, match=r"no place for: .*experts\.0\.up_proj.*\n.*not experts"):
        LLM(str(base), adapters={"bad": str(folder)})
    change_config(folder, target_modules=["up_proj"])
    with pytest.raises(ConfigError, match="experts alone"):
        LLM(str(base), adapters={"bad": str(folder)})


def test_what_attention_absorbs(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "latent", "deepseek_v2", **LATENT)
    folder = write_adapter(tmp_path / "adapter", base, seed=1, r=2, target_modules=["o_proj", "kv_b_proj"])
    with pytest.raises(ConfigError, match=r"kv_b_proj, which is computed inside attention"):
        LLM(str(base), adapters={"bad": str(folder)})


@pytest.mark.parametrize("name", ["", "base", "a\nb"])
def test_names(name: str, base: Path, good: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[adapters\]"):
        LLM(str(base), **{"model.served_name": "base"}, adapters={name: str(good)})


def test_a_family_without_a_tree(base: Path, good: Path) -> None:
    with pytest.raises(ConfigError, match="adapters need a family that is a tree"):
        LLM(str(base), **{"select.model.use": "models.transformers"}, adapters={"good": str(good)})


@pytest.mark.slow
def test_the_server_does_not_start(base: Path, good: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(good, tmp_path / "bad")
    change_config(bad, r=8)
    given = [*LLMK, "serve", str(base), "--port", "0", "--set", f"adapters.the-bad={bad}"]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "has shape [4, 64], not [8, 64]" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_explain_shows_adapters(base: Path, good: Path) -> None:
    given = [*LLMK, "explain", str(base), "--set", f"adapters.the-good={good}"]
    shown = subprocess.run(given, capture_output=True, text=True, timeout=120, check=True).stdout
    assert f"adapter the-good: 9 projections, rank 4, {good}" in shown
    assert "reference.add_adapters" in shown
