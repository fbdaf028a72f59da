"""Plain checkpoints quantized while they load: the numbers that are multiplied are those that rounding gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import LAYOUTS, QUANTIZED, write
from torch import Tensor

from llmk.api import CheckpointError, SelectionError
from llmk.reference.quantize import quantize_fp8_block, quantize_fp8_channel, quantize_fp8_tensor
from llmk_quantization.examples import MODELS, SIZES, multiplied
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness

METHODS = {"fp8": quantize_fp8_channel, "fp8_tensor": quantize_fp8_tensor, "fp8_block": quantize_fp8_block}
PROMPT = [5, 6, 7, 8, 9, 10, 11, 300, 20]


def logits(folder: Path, **model: Any) -> Tensor:
    settings = {f"model.{name}": value for name, value in {"dtype": "float32", **model}.items()}
    (found,) = ModelHarness.of(folder, settings).step([("a", PROMPT)])
    return found


@pytest.fixture(params=MODELS)
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model_type, sizes = MODELS[request.param]
    return write_checkpoint(tmp_path / "plain", model_type, **SIZES, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_weights_are_rounded_while_loading(plain: Path, method: str) -> None:
    exact, found = logits(plain), logits(plain, quantization=method)
    tensors = load_file(plain / "model.safetensors")
    for name in filter(QUANTIZED.fullmatch, tensors):
        parts = METHODS[method](tensors[name])
        tensors[name] = multiplied(parts["weight"], parts["weight_scale"])
    save_file(tensors, plain / "model.safetensors")
    torch.testing.assert_close(found, logits(plain), rtol=1e-4, atol=1e-3)
    assert 0.01 < (found - exact).norm() / exact.norm() < 0.3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stored", ["", "fp8 static", "fp8 block"])
def test_dummy_weights_are_quantized_too(model: str, stored: str, tmp_path: Path) -> None:
    quantized, plain = write(tmp_path, model, LAYOUTS[stored or "fp8 static"])
    method: dict[str, Any] = {} if stored else {"quantization": "fp8"}
    found = logits(quantized if stored else plain, load_format="dummy", **method)
    exact = logits(plain, load_format="dummy")
    assert 0.01 < (found - exact).norm() / exact.norm() < 0.3


def test_an_unknown_method_lists_the_known_ones(plain: Path) -> None:
    with pytest.raises(SelectionError, match=r"\[model\] quantization names 'fp9'") as caught:
        logits(plain, quantization="fp9")
    assert "quantization.fp8" in caught.value.hint


def test_a_quantized_checkpoint_is_not_quantized_again(tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, "dense", LAYOUTS["fp8 block"])
    with pytest.raises(
        SelectionError, match=r"(?s)fp8_tensor is pinned by \[model\] quantization .*wanted plain weights"
    ):
        logits(quantized, quantization="fp8_tensor")


def test_layers_of_transformers_modules_are_quantized_too(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", "qwen3", **SIZES)
    own = logits(plain, quantization="fp8")
    through = ModelHarness.of(plain, {"model.quantization": "fp8", "select.model.use": "models.transformers"})
    assert relative_error(through.step([("a", PROMPT)])[0], own) < relative_error(logits(plain), own) / 10


def test_transformers_modules_without_such_layers_are_refused(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", "gpt2", n_embd=128, n_head=4, n_layer=2)
    with pytest.raises(CheckpointError, match=r"quantization\.fp8 can't serve transformers' modules"):
        ModelHarness.of(plain, {"model.quantization": "fp8"})


def test_what_is_not_plain_is_not_quantized(tmp_path: Path) -> None:
    """A checkpoint whose config forgot to say that it is quantized."""
    quantized, plain = write(tmp_path, "dense", LAYOUTS["fp8 block"])
    (quantized / "config.json").write_bytes((plain / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"stores .*weight \(F8_E4M3\).* expected a plain weight"):
        logits(quantized, quantization="fp8")
    with pytest.raises(CheckpointError, match="F8_E4M3"):
        logits(quantized)
