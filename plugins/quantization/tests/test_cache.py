"""An fp8 cache, whose scales have several names in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stored import LAYOUTS, stored, write
from torch import Tensor

from llmk.api import CheckpointError
from llmk_testing.model import ModelHarness

PROMPT = [5, 6, 7, 8, 9, 10, 11, 300, 20]
NAMES = [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale"), ("k_proj.output_scale", "v_proj.output_scale")]


def harness(folder: Path, **cache: Any) -> ModelHarness:
    settings = {f"cache.{name}": value for name, value in cache.items()}
    return ModelHarness.of(folder, {"model.dtype": "float32", **settings})


def logits(model: ModelHarness) -> Tensor:
    """Of the whole prompt, its first half in a step of its own."""
    return torch.cat([model.step([("a", part)])[0] for part in (PROMPT[:5], PROMPT[5:6], PROMPT[6:])])


def with_scales(folder: Path, quantized: Path, names: tuple[str, str], scales: tuple[Tensor, Tensor]) -> Path:
    tensors = load_file(quantized / "model.safetensors")
    for name, scale in zip(names, scales, strict=True):
        tensors |= {f"model.layers.{layer}.self_attn.{name}": scale.clone() for layer in range(2)}
    return stored(folder, quantized, tensors, LAYOUTS["fp8 block"].config)


@pytest.mark.parametrize("names", NAMES)
def test_scales_are_found_and_used(names: tuple[str, str], tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, "dense", LAYOUTS["fp8 block"])
    exact = logits(harness(quantized))
    scales = torch.tensor(0.05), torch.tensor([0.02])
    scaled = with_scales(tmp_path / "scaled", quantized, names, scales)
    found = logits(model := harness(scaled, dtype="float8_e4m3fn"))
    assert model._caches[0].dtype == torch.float8_e4m3fn
    largest = [model._caches[0][:, plane].float().nan_to_num().abs().max().item() for plane in (0, 1)]
    assert all(20 < value <= 448 for value in largest), "scales of 1 would leave them below 20"
    assert 0.001 < (found - exact).norm() / exact.norm() < 0.1
    assert torch.equal(logits(harness(scaled)), exact), "a wide cache has no scales"


def test_scales_that_are_too_small_saturate(tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, "dense", LAYOUTS["fp8 block"])
    scales = torch.tensor(1e-4), torch.tensor(1e-4)
    scaled = with_scales(tmp_path / "scaled", quantized, NAMES[0], scales)
    model = harness(scaled, dtype="float8_e4m3fn")
    assert logits(model).isfinite().all()
    assert model._caches[0].float().nan_to_num().abs().max() == 448


@pytest.mark.parametrize("kind", ["plain", "online"])
def test_a_checkpoint_without_scales_has_ones(kind: str, tmp_path: Path) -> None:
    _, plain = write(tmp_path, "dense", LAYOUTS["fp8 block"])
    exact, found = (
        logits(ModelHarness.of(plain, {"model.dtype": "float32", **settings}))
        for settings in (
            {},
            {"cache.dtype": "float8_e4m3fn"} | ({"model.quantization": "fp8"} if kind == "online" else {}),
        )
    )
    assert 0.001 < (found - exact).norm() / exact.norm() < 0.2


def test_scales_per_head_are_refused(tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, "dense", LAYOUTS["fp8 block"])
    scaled = with_scales(tmp_path / "scaled", quantized, NAMES[0], (torch.ones(4), torch.ones(4)))
    with pytest.raises(CheckpointError, match=r"self_attn\.k_scale.* has shape \[4\], not \[1\]"):
        harness(scaled)
