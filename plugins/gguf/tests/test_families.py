"""Every architecture, as a GGUF file and as the checkpoint that it was written from."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import write_gguf
from threaded_ranks import ThreadedRanks
from torch import Tensor

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError
from llmk.engine import launch
from llmk_gguf.architectures import ARCHITECTURES
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama, tied, heads of their own size": ("llama", {"tie_word_embeddings": True, "head_dim": 32}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen2moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 80}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", {**GEMMA, "num_hidden_layers": 7}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3, a part of each head": ("phi3", {"sliding_window": 8, "partial_rotary_factor": 0.5}),
    "granite": ("granite", GRANITE),
    "olmo2": ("olmo2", {}),
}
PROMPT = [5, 6, 7, 8, 9, 10, 11, 300, 20, 31, 47]


def logits(path: Path, dtype: str = "float32", **settings: Any) -> Tensor:
    (found,) = ModelHarness.of(path, {"model.dtype": dtype, **settings}).step([("a", PROMPT)])
    return found


def written(tmp_path: Path, model_type: str, options: dict[str, Any]) -> Path:
    if model_type == "phi3" and "partial_rotary_factor" in options:
        options = {
            **options,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        }
    return write_checkpoint(tmp_path / "plain", model_type, **options)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_has_the_checkpoints_logits(tmp_path: Path, family: str) -> None:
    model_type, options = FAMILIES[family]
    metadata: dict[str, Any] = {}
    if "yarn" in family:
        at = "qwen2__rope__scaling__"
        metadata = {f"{at}type": "yarn", f"{at}factor": 4.0, f"{at}original_context_length": 64}
    folder = written(tmp_path, model_type, options)
    file = write_gguf(folder, tmp_path / "model.gguf", **metadata)
    expected, found = logits(folder), logits(file)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 256, "norm_topk_prob": True}),
    "phi3": ("phi3", {"sliding_window": None}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 64, "sliding_window": 4}),
}


def q4_k_m(tensor: str) -> str:
    """As llama.cpp chooses types for some of the layers."""
    return "Q6_K" if "attn_v" in tensor or "ffn_down" in tensor or tensor == "token_embd.weight" else "Q4_K"


KINDS: dict[str, str | Callable[[str], str]] = {
    **{kind: kind for kind in ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K")},
    "Q4_K_M": q4_k_m,
    "with types that are not kept": lambda tensor: "Q5_0" if "blk.1.ffn_gate." in tensor else "Q4_0",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [("qwen3", kind) for kind in KINDS] + [(family, "Q4_K_M") for family in PACKED if family != "qwen3"],
)
def test_packed_weights_are_the_plain_ones(tmp_path: Path, family: str, kind: str) -> None:
    model_type, options = PACKED[family]
    folder = write_checkpoint(tmp_path / "plain", model_type, **{**SIZES, **options})
    file = write_gguf(folder, tmp_path / "model.gguf", KINDS[kind])
    plain, packed = logits(file), logits(file, **{"plugin.gguf.weights": "packed"})
    original = logits(folder)
    assert (packed - plain).norm() / plain.norm() < 1e-4
    assert 1e-4 < (plain - original).norm() / original.norm() < 0.6
    made = ModelHarness.of(file, {"model.dtype": "float32", "plugin.gguf.weights": "packed"})
    formats = {method.weight_format for method in made.boot.plan.quantization}
    assert formats <= {"int8_group", "int4_group"}
    assert formats


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["plain", "packed"])
def test_two_ranks_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    folder = write_checkpoint(tmp_path / "plain", "llama", **SIZES)
    file = str(write_gguf(folder, tmp_path / "model.gguf", q4_k_m))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "plugin": {"gguf": {"weights": weights}}}

    def answers(**parallel: int) -> tuple[tuple[int, ...], list[float]]:
        with LLM(file, parallel=parallel, **options) as llm:
            (result,) = llm.generate([PROMPT], params, use_tqdm=False)
            return tuple(result.outputs[0].token_ids), [entry.logprob for entry in result.outputs[0].logprobs]

    tokens, numbers = answers()
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    found, close = answers(tensor=2)
    assert found == tokens
    assert close == pytest.approx(numbers, abs=1e-3)


def test_every_architecture_is_tested() -> None:
    assert {re.split(",", name)[0] for name in FAMILIES} - {"mistral", "mixtral"} == set(ARCHITECTURES)


def test_factors_of_frequencies_equal_llama_3s(tmp_path: Path) -> None:
    """GGUF has a factor for each frequency where ``config.json`` has the numbers that they are made of."""
    folder = write_checkpoint(tmp_path / "plain", "llama", rope_parameters=LLAMA3)
    wavelengths = 2 * torch.pi * 10000.0 ** (torch.arange(0, 16, 2) / 16)
    smooth = ((64 / wavelengths - 1.0) / (4.0 - 1.0)).clamp(0, 1)
    factors = 1 / ((1 - smooth) / 8.0 + smooth)
    file = write_gguf(folder, tmp_path / "model.gguf", extra={"rope_freqs.weight": factors.numpy()})
    torch.testing.assert_close(logits(file), logits(folder), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32")])
def test_the_dtype_is_that_of_the_weights(tmp_path: Path, kind: str, dtype: str) -> None:
    folder = write_checkpoint(tmp_path / "plain", "llama", dtype="bfloat16")
    file = write_gguf(folder, tmp_path / "model.gguf", kind)
    found = ModelHarness.of(file, {"model.dtype": "bfloat16"})
    assert found.boot.checkpoint.config["dtype"] == dtype
    assert torch.equal(logits(file, "bfloat16"), logits(folder, "bfloat16"))


def test_stacks_that_are_no_stacks_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "plain", "qwen3")
    file = write_gguf(folder, tmp_path / "model.gguf", qwen3__block_count=2)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.[\w.]+.*has no place for|has no place for"):
        logits(file)
