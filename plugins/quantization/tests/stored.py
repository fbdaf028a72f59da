"""Tiny checkpoints with fp8 weights, each in the layout of another tool, and for each the plain float32 checkpoint that
stands for the same numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llmk.reference.quantize import quantize_fp8_block, quantize_fp8_channel, quantize_fp8_tensor
from llmk_quantization.examples import MODELS, SIZES, compressed, multiplied
from llmk_testing.checkpoints import write_checkpoint

QUANTIZED = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj\.weight")


@dataclass(frozen=True)
class Layout:
    """How weights are stored: what ``quantize`` makes, its scale under the name ``scale`` and reshaped by ``shape``;
    ``extra`` are further tensors of each module, ``config`` is the ``quantization_config``."""

    quantize: Callable[[Tensor], dict[str, Tensor]]
    scale: str
    shape: Callable[[Tensor], Tensor]
    config: Mapping[str, Any]
    extra: tuple[str, ...] = ()


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
LAYOUTS = {
    "fp8 static": Layout(
        quantize_fp8_tensor,
        "weight_scale",
        lambda scale: scale.view(()),
        FP8 | {"activation_scheme": "static"},
        ("input_scale",),
    ),
    "fp8 block": Layout(
        quantize_fp8_block,
        "weight_scale_inv",
        lambda scale: scale.bfloat16(),
        FP8 | {"weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
    ),
    "compressed tensor": Layout(
        quantize_fp8_tensor, "weight_scale", lambda scale: scale.view(1), compressed(strategy="tensor")
    ),
    "compressed channel": Layout(
        quantize_fp8_channel, "weight_scale", lambda scale: scale.bfloat16(), compressed(strategy="channel")
    ),
    "compressed block": Layout(
        quantize_fp8_block,
        "weight_scale",
        lambda scale: scale,
        compressed(strategy="block", block_structure=[128, 128]),
    ),
}


def write(folder: Path, model: str, layout: Layout) -> tuple[Path, Path]:
    """Writes the quantized checkpoint, and the plain one of equal numbers."""
    model_type, sizes = MODELS[model]
    plain = write_checkpoint(folder / "plain", model_type, **SIZES, **sizes)
    tensors, quantized = load_file(plain / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        if not QUANTIZED.fullmatch(name):
            quantized[name] = tensor
            continue
        module = name.removesuffix(".weight")
        parts = layout.quantize(tensor)
        scale = layout.shape(parts["weight_scale"])
        quantized |= {name: parts["weight"], f"{module}.{layout.scale}": scale}
        quantized |= {f"{module}.{extra}": torch.tensor(0.25) for extra in layout.extra}
        tensors[name] = multiplied(parts["weight"], scale)
    save_file(tensors, plain / "model.safetensors")
    return stored(folder / "quantized", plain, quantized, layout.config), plain


def stored(folder: Path, like: Path, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> Path:
    """A checkpoint of ``tensors``, otherwise ``like`` another."""
    folder.mkdir()
    for file in like.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((like / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": dict(config)}))
    save_file(tensors, folder / "model.safetensors")
    return folder
