"""Examples for the conformance kit: modules as the reader presents them, whose files it has read. Needs transformers,
which writes the checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.reference.quantize import quantize_int4_group, quantize_int8_group
from llmk_gguf.specs import METHOD
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

_GROUP = 32
_PARTS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
_MODULES = [f"model.layers.{i}.{block}.{part}" for i in range(3) for block, parts in _PARTS.items() for part in parts]


def _numbers(parts: Mapping[str, Tensor]) -> Tensor:
    """``[out, in]``."""
    if "weight" in parts:
        return parts["weight"].float()
    packed = parts["weight_packed"]
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).float()


def _restored(parts: Mapping[str, Tensor], usual: float) -> Tensor:
    """Numbers less the zero point of their group, times its scale."""
    scale, numbers = parts["weight_scale"], _numbers(parts)
    zero = parts.get("weight_zero_point", torch.full_like(scale, usual)).float()
    groups = numbers.unflatten(1, (scale.shape[1], -1))
    restored: Tensor = ((groups - zero[..., None]) * scale[..., None]).flatten(1)
    return restored


def _plain(quantize: Callable[[Tensor, int], dict[str, Tensor]], weight: Tensor) -> dict[str, Tensor]:
    """Without zero points."""
    return quantize(weight, _GROUP)


def _shifted(quantize: Callable[[Tensor, int], dict[str, Tensor]], usual: float, weight: Tensor) -> dict[str, Tensor]:
    """With zero points, as types with minima have them."""
    parts = quantize(weight, _GROUP)
    return {**parts, "weight_zero_point": torch.full_like(parts["weight_scale"], usual)}


def _examples(
    weight_format: str, quantize: Callable[[Tensor, int], dict[str, Tensor]], usual: float, error: float
) -> tuple[QuantizationExample | ConfigExample, ...]:
    """Without zero points and with them; and what is claimed."""
    config: dict[str, Any] = {"quant_method": METHOD, "modules": dict.fromkeys(_MODULES, weight_format)}
    other = {**config, "modules": {"a": weight_format, "b": "int8_group" if usual else "int4_group"}}
    return (
        *(
            QuantizationExample(
                name=name,
                model_type="qwen3",
                model_config={"hidden_size": 128, "intermediate_size": 224},
                stored=stored,
                restored=partial(_restored, usual=usual),
                quantization_config=config,
                error=error,
                logits_error=3 * error,
                optional=("weight_zero_point",),
                presented=True,
            )
            for name, stored in (
                ("plain groups", partial(_plain, quantize)),
                ("groups with zero points", partial(_shifted, quantize, usual)),
            )
        ),
        ConfigExample(config=other, modules={"a": True, "b": False, "c": False}),
        ConfigExample(config={**config, "quant_method": "gptq"}, claimed="quant_method"),
        ConfigExample(config={**config, "modules": {"a": "plain"}}, claimed="modules"),
        ConfigExample(config={**config, "modules": None}, claimed="modules"),
    )


INT8_GROUP = _examples("int8_group", quantize_int8_group, 0.0, 0.02)
INT4_GROUP = _examples("int4_group", quantize_int4_group, 8.0, 0.3)
