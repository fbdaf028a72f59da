"""Example checkpoints for the conformance kit. Needs transformers, which writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, tensor

from llmk.reference.quantize import (
    quantize_fp8_block,
    quantize_fp8_channel,
    quantize_fp8_tensor,
    quantize_int4_group,
    quantize_int8_channel,
)
from llmk_testing.quantization_example import QuantizationExample

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {}),
    "experts": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}),
}
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 2,
}


def compressed(stored: str = "float-quantized", **weights: Any) -> dict[str, Any]:
    """The config of compressed-tensors with one group of ``weights`` in the format ``stored``."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def packed_int4(weight: Tensor, group_size: int = 32, *, symmetric: bool = True) -> dict[str, Tensor]:
    """A weight ``[out, in]`` as compressed-tensors stores it in the format ``pack-quantized``."""
    parts = quantize_int4_group(weight, group_size, symmetric=symmetric)
    stored = {
        "weight_packed": parts["weight_packed"].contiguous().view(torch.int32),
        "weight_scale": parts["weight_scale"].bfloat16(),
        "weight_shape": tensor(weight.shape),
    }
    if not symmetric:
        rows = parts["weight_zero_point"].int().view(-1, 8, parts["weight_zero_point"].shape[1])
        stored["weight_zero_point"] = torch.stack([rows[:, i] << 4 * i for i in range(8)]).sum(0).int()
    return stored


def unpacked_int4(parts: Mapping[str, Tensor]) -> Tensor:
    """Dequantizes the numbers of :func:`packed_int4`."""
    words, scale = parts["weight_packed"], parts["weight_scale"].float()
    numbers = torch.stack([words >> 4 * i & 15 for i in range(8)], dim=-1).view(*scale.shape, -1)
    zero = torch.full_like(scale, 8)
    if "weight_zero_point" in parts:
        zero = torch.stack([parts["weight_zero_point"] >> 4 * i & 15 for i in range(8)], dim=1).flatten(0, 1)
    return ((numbers - zero[..., None]) * scale[..., None]).view(words.shape[0], -1)


def multiplied(values: Tensor, scale: Tensor) -> Tensor:
    """Dequantizes 8-bit ``values`` with one scale, one per row, or one per block of 128x128."""
    scale = scale.float()
    if (scale.ndim == 2 and scale.shape[1] > 1) or scale.numel() not in (1, values.shape[0]):
        scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: values.shape[0], : values.shape[1]]
    elif scale.numel() > 1:
        scale = scale.view(-1, 1)
    return values.float() * scale


def _examples(
    quantize: Callable[[Tensor], dict[str, Tensor]],
    config: Mapping[str, Any] | None = None,
    *,
    scale: str = "weight_scale",
    shape: Callable[[Tensor], Tensor] = lambda scale: scale,
    extra: Mapping[str, float] | None = None,
) -> tuple[QuantizationExample, ...]:
    """A dense and a sparse model, quantized by ``quantize``, with the scale named ``scale`` in the given ``shape``, and
    ``extra`` tensors that are not used."""

    def stored(weight: Tensor) -> dict[str, Tensor]:
        parts = quantize(weight)
        return {
            "weight": parts["weight"],
            scale: shape(parts["weight_scale"]),
            **{name: tensor(value) for name, value in (extra or {}).items()},
        }

    return tuple(
        QuantizationExample(
            name=name,
            model_type=model_type,
            model_config={**SIZES, **sizes},
            stored=stored,
            restored=lambda parts: multiplied(parts["weight"], parts[scale]),
            quantization_config=config or {},
            unused=tuple(extra or ()),
        )
        for name, (model_type, sizes) in MODELS.items()
    )


_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
STORED_FP8 = _examples(
    quantize_fp8_tensor,
    _FP8 | {"activation_scheme": "static"},
    shape=lambda scale: scale.view(()),
    extra={"input_scale": 0.25},
)
STORED_FP8_BLOCK = _examples(
    quantize_fp8_block,
    _FP8 | {"weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
    scale="weight_scale_inv",
    shape=Tensor.bfloat16,
)
COMPRESSED_TENSORS = (
    *_examples(quantize_fp8_tensor, compressed(strategy="tensor"), shape=lambda scale: scale.view(1)),
    *_examples(quantize_fp8_channel, compressed(strategy="channel"), shape=Tensor.bfloat16),
)
COMPRESSED_TENSORS_INT8 = _examples(
    quantize_int8_channel, compressed("int-quantized", type="int", strategy="channel"), shape=Tensor.bfloat16
)
COMPRESSED_TENSORS_INT4 = tuple(
    QuantizationExample(
        name=f"{name}, {kind}",
        model_type=model_type,
        model_config={**SIZES, **sizes},
        stored=partial(packed_int4, symmetric=symmetric),
        restored=unpacked_int4,
        quantization_config=compressed(
            "pack-quantized", type="int", num_bits=4, strategy="group", group_size=32, symmetric=symmetric
        ),
        error=0.3,
        logits_error=0.6,
    )
    for name, (model_type, sizes) in MODELS.items()
    for kind, symmetric in (("symmetric", True), ("with zero points", False))
)
COMPRESSED_TENSORS_BLOCK = _examples(quantize_fp8_block, compressed(strategy="block", block_structure=[128, 128]))
FP8 = _examples(quantize_fp8_channel)
FP8_TENSOR = _examples(quantize_fp8_tensor)
FP8_BLOCK = _examples(quantize_fp8_block)
