"""Checkpoints that the library compressed-tensors writes answer as what it makes of them again does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import QUANTIZED, stored
from torch import Tensor

from llmk_quantization.examples import MODELS, SIZES
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

INT8_INPUTS = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True)
FP8_INPUTS = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
SCHEMES: dict[str, tuple[str, dict[str, Any], QuantizationArgs | None]] = {
    "W4A16": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 128}, None),
    "W4A16, whole rows": ("pack-quantized", {"num_bits": 4, "strategy": "channel"}, None),
    "W4A16, zero points": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        None,
    ),
    "W8A16": ("pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": 128, "symmetric": False}, None),
    "W8A8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}, INT8_INPUTS),
    "FP8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, FP8_INPUTS),
}


def quantized(weight: Tensor, args: QuantizationArgs) -> dict[str, Tensor]:
    """``weight``, and the scales and zero points that the library has it rounded with."""
    groups = weight.unflatten(1, (-1, args.group_size or weight.shape[1]))
    found: dict[str, Tensor] = {"weight": weight}
    scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), args)
    found["weight_scale"] = scale.bfloat16().float()
    return found | {"weight_zero_point": zero}


def written(folder: Path, model: str, name: str) -> tuple[Path, Path]:
    """The checkpoint that the library compresses, and a plain one of what it decompresses."""
    layout, given, inputs = SCHEMES[name]
    model_type, sizes = MODELS[model]
    plain = write_checkpoint(folder / "plain", model_type, **SIZES, **sizes)
    args = QuantizationArgs(**{"type": "int", "symmetric": True, **given})
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs, format=layout)
    library = BaseCompressor.get_value_from_registry(layout)
    tensors, kept = load_file(plain / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        if not QUANTIZED.fullmatch(name):
            kept[name] = tensor
            continue
        module = name.removesuffix("weight")
        parts = library.compress(quantized(tensor, args), scheme)
        kept |= {module + part: value.contiguous() for part, value in parts.items()}
        tensors[name] = library.decompress(dict(parts), scheme)["weight"].float().contiguous()
    save_file(tensors, plain / "model.safetensors")
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=layout, ignore=["lm_head"])
    return stored(folder / "quantized", plain, kept, config.model_dump(mode="json")), plain


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
def test_reads_what_the_library_writes(name: str, model: str, tmp_path: Path) -> None:
    found, expected = (
        ModelHarness.of(folder, {"model.dtype": "float32"}).step([("a", [5, 6, 7, 300, 20])])[0]
        for folder in written(tmp_path, model, name)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
