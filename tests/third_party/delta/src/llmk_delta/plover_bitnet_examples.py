"""Examples of BitNet checkpoints for the conformance kit, written as its authors' tools do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llmk_testing.quantization_example import ConfigExample, QuantizationExample

NAME = "model.layers.0.self_attn.q_proj"


def writer(divides: bool, dtype: torch.dtype) -> Callable[[Tensor], dict[str, Tensor]]:
    """What stores a matrix, with its scale or the scale's reciprocal."""

    def stored(weight: Tensor) -> dict[str, Tensor]:
        if weight.shape[0] % 4 or weight.shape[1] % 2:
            raise ValueError(f"there is no place for {list(weight.shape)}")
        scale = weight.abs().mean().clamp_min(1e-30)
        codes = ((weight / scale).round().clamp(-1, 1) + 1).to(torch.uint8)
        packed = torch.zeros_like(codes[: len(codes) // 4])
        for place, quarter in enumerate(codes.split(len(packed))):
            packed += quarter * 4**place
        return {"weight": packed, "weight_scale": (1 / scale if divides else scale).view(1).to(dtype)}

    return stored


def reader(divides: bool) -> Callable[[dict[str, Tensor]], Tensor]:
    """What the stored tensors represent."""

    def restored(stored: dict[str, Tensor]) -> Tensor:
        quarters = [stored["weight"] // 4**place % 4 for place in range(4)]
        numbers, scale = torch.cat(quarters).float() - 1, stored["weight_scale"].float()
        return numbers / scale if divides else numbers * scale

    return restored


def example(name: str, model_type: str, linear_class: str, dtype: torch.dtype) -> QuantizationExample:
    """A layout of a model."""
    divides = linear_class == "bitlinear"
    return QuantizationExample(
        name=name,
        model_type=model_type,
        model_config={"num_hidden_layers": 2},
        stored=writer(divides, dtype),
        restored=reader(divides),
        quantization_config={
            "quant_method": "bitnet",
            "linear_class": linear_class,
            "quantization_mode": "offline",
            "modules_to_not_convert": ["lm_head"],
        },
        error=0.7,
        logits_error=1.5,
    )


BITNET = (
    example("reciprocal scale", "llama", "bitlinear", torch.float32),
    example("scale in bfloat16, biases", "qwen2", "autobitlinear", torch.bfloat16),
    ConfigExample(config={}, claimed="quant_method"),
    ConfigExample(config={"quant_method": "gptq"}, claimed="quant_method"),
    ConfigExample(config={"quant_method": "bitnet", "quantization_mode": "online"}, claimed="quantization_mode"),
    ConfigExample(config={"quant_method": "bitnet"}, modules={NAME: True}, unmatched=()),
    ConfigExample(
        config={"quant_method": "bitnet", "modules_to_not_convert": ["mlp.gate", "layers.1", "o_proj", "vision"]},
        modules={
            NAME: True,
            "model.layers.0.mlp.gate": False,
            "model.layers.0.mlp.gate_proj": True,
            "model.layers.1.mlp.up_proj": False,
            "model.layers.11.mlp.up_proj": True,
            "model.layers.0.self_attn.o_proj": False,
        },
        unmatched=("vision",),
    ),
    ConfigExample(config={"quant_method": "bitnet", "modules_to_not_convert": None}, modules={NAME: True}),
    ConfigExample(
        config={"quant_method": "bitnet", "use_rms_norm": True, "modules_to_not_convert": ["up_proj"]},
        modules={NAME: "use_rms_norm", "model.layers.1.mlp.up_proj": False},
    ),
    ConfigExample(config={"quant_method": "bitnet", "use_rms_norm": "no"}, error="use_rms_norm"),
    ConfigExample(config={"quant_method": "bitnet", "linear_class": "linear"}, error="linear_class"),
    ConfigExample(config={"quant_method": "bitnet", "quantization_mode": "later"}, error="quantization_mode"),
    ConfigExample(
        config={"quant_method": "bitnet", "modules_to_not_convert": "lm_head"}, error="modules_to_not_convert"
    ),
    ConfigExample(config={"quant_method": "bitnet", "modules_to_not_convert": [1]}, error="modules_to_not_convert"),
)
