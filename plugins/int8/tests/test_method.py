"""Plain checkpoints that become 8-bit while they load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from threaded_ranks import ThreadedRanks
from torch import Tensor

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError, SelectionError
from llmk.engine import launch
from llmk.nn import Linear
from llmk.reference.quantize import quantize_int8_channel
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {}),
    "experts": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
}
QUANTIZED = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj\.weight")
PROMPT = [5, 6, 7, 8, 9, 10, 11, 300, 20]


@pytest.fixture(params=MODELS)
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model_type, sizes = MODELS[request.param]
    return write_checkpoint(tmp_path / "plain", model_type, **SIZES, **sizes)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "dense", "qwen3", **SIZES)


def harness(folder: Path, **model: Any) -> ModelHarness:
    return ModelHarness.of(folder, {f"model.{name}": value for name, value in {"dtype": "float32", **model}.items()})


def logits(folder: Path, **model: Any) -> Tensor:
    (found,) = harness(folder, **model).step([("a", PROMPT)])
    return found


def rewrite(folder: Path, change: Any) -> None:
    """Replaces what :data:`QUANTIZED` names in a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name: change(tensor) for name, tensor in tensors.items() if QUANTIZED.fullmatch(name)}
    save_file(tensors, folder / "model.safetensors")


def rounded(weight: Tensor) -> Tensor:
    parts = quantize_int8_channel(weight)
    return parts["weight"] * parts["weight_scale"]


def test_the_model_uses_the_rounded_weights(plain: Path) -> None:
    exact, found = logits(plain), logits(plain, quantization="int8")
    rewrite(plain, rounded)
    torch.testing.assert_close(found, logits(plain), rtol=1e-4, atol=1e-3)
    assert 0.001 < (found - exact).norm() / exact.norm() < 0.1


def test_bfloat16_is_near(dense: Path) -> None:
    exact, found = logits(dense), logits(dense, quantization="int8", dtype="bfloat16")
    assert (found - exact).norm() / exact.norm() < 0.1


def test_projections_that_are_packed_keep_their_own_scales(dense: Path) -> None:
    """An output channel is rounded by its own largest weight, independent of the others."""
    rewrite(dense, lambda weight: weight * torch.logspace(-3, 0, weight.shape[0])[:, None])
    tensors = load_file(dense / "model.safetensors")
    packed = next(
        layer.weight for layer in harness(dense, quantization="int8").model.weights if isinstance(layer, Linear)
    )
    parts = [tensors[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(packed.values, torch.cat([quantize_int8_channel(part)["weight"] for part in parts]))
    assert torch.equal(packed.scale, torch.cat([quantize_int8_channel(part)["weight_scale"] for part in parts]))


def test_linear_layers_take_half_the_memory_and_heads_stay_plain(dense: Path) -> None:
    def linear_bytes(**model: Any) -> dict[str, int]:
        made = harness(dense, dtype="bfloat16", **model).model
        weights = {layer._prefix: layer.weight for layer in made.weights if isinstance(layer, Linear)}
        return {
            name: sum(t.nbytes for t in ([weight] if isinstance(weight, Tensor) else [weight.values, weight.scale]))
            for name, weight in weights.items()
        }

    wide, narrow = linear_bytes(), linear_bytes(quantization="int8")
    assert narrow.pop("lm_head", 0) == wide.pop("lm_head", 0)
    assert wide.keys() == narrow.keys()
    assert 0.5 < sum(narrow.values()) / sum(wide.values()) < 0.53


def test_dummy_weights_are_quantized_too(plain: Path) -> None:
    exact, found = logits(plain, load_format="dummy"), logits(plain, load_format="dummy", quantization="int8")
    assert 0.001 < (found - exact).norm() / exact.norm() < 0.1


def test_two_ranks_equal_one(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both halves of a row have the largest weight, both ranks round it as one process does."""

    def level(weight: Tensor) -> Tensor:
        halves = weight.unflatten(1, (2, -1))
        return (halves * (weight.abs().amax(dim=1)[:, None, None] / halves.abs().amax(dim=2, keepdim=True))).flatten(1)

    rewrite(dense, level)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)

    def answers(**parallel: int) -> tuple[tuple[int, ...], list[float]]:
        with LLM(str(dense), dtype="float32", quantization="int8", max_model_len=64, parallel=parallel) as llm:
            (result,) = llm.generate([PROMPT], params, use_tqdm=False)
            return tuple(result.outputs[0].token_ids), [entry.logprob for entry in result.outputs[0].logprobs]

    tokens, numbers = answers()
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    found, close = answers(tensor=2)
    assert found == tokens
    assert close == pytest.approx(numbers, abs=1e-3)


def test_a_quantized_checkpoint_is_refused(dense: Path) -> None:
    rewrite(dense, lambda weight: weight.to(torch.float8_e4m3fn))
    with pytest.raises(CheckpointError, match=r"q_proj stores weight \(F8_E4M3\), expected a plain weight"):
        logits(dense, quantization="int8")
    config = dense / "config.json"
    config.write_text(config.read_text().replace("{", '{"quantization_config": {"quant_method": "fp8"},', 1))
    with pytest.raises(SelectionError, match=r"(?s)int8 is pinned by \[model\] quantization .*wanted plain weights"):
        logits(dense, quantization="int8")


def test_the_demo_model_still_answers() -> None:
    with LLM(quantization="int8") as llm:
        (answer,) = llm.generate(["What is the capital of Japan?"], SamplingParams(temperature=0, max_tokens=24))
        kernels = {piece.id for choice in llm.boot.plan.choices if choice.kind == "linear" for piece in choice.pieces}
    assert "Tokyo" in answer.outputs[0].text
    assert {id for id in kernels if not id.startswith("cpu.")} <= {"int8.linear_packed", "int8.linear_widened"}
    assert kernels & {"int8.linear_widened", "cpu.linear_int8"}
