"""Examples for the conformance kit. Needs transformers, which writes the checkpoints."""

from __future__ import annotations

from torch import Tensor

from llmk_testing.quantization_example import ConfigExample, QuantizationExample


def restored(stored: dict[str, Tensor]) -> Tensor:
    """The weight that the stored tensors represent."""
    return stored["weight"].float() * stored["weight_scale"]


def stored(weight: Tensor) -> dict[str, Tensor]:
    """The expected result of the method, implemented independently: 127 steps up to the largest weight of each
    output."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return {"weight": (weight / scale).round().char(), "weight_scale": scale}


ROUNDED = (
    QuantizationExample(
        name="dense",
        model_type="qwen3",
        model_config={"num_hidden_layers": 2},
        stored=stored,
        restored=restored,
        error=0.02,
        logits_error=0.1,
    ),
    ConfigExample(config={}),
    ConfigExample(config={"quant_method": "fp8"}, claimed="quantized"),
)
