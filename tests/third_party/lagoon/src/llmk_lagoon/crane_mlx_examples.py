"""Examples for the conformance kit: weights as mlx_lm.convert stores them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from llmk_testing.quantization_example import ConfigExample, QuantizationExample


# The kit knows no uint32, which MLX writes, so the words are those of int32, which the method reads alike.
def stored(weight: Tensor, group: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """As ``mx.quantize`` does: the edge of a group's range that is farther from 0 is hit exactly."""
    rows, columns = weight.shape
    if columns % group:
        raise ValueError("MLX quantizes whole groups")
    groups = weight.float().view(rows, columns // group, group)
    least, most = groups.amin(-1), groups.amax(-1)
    scale = ((most - least) / 15).clamp_min(1e-7)
    from_least = least.abs() > most.abs()
    scale = torch.where(from_least, scale, -scale)
    edge = torch.where(from_least, least, most)
    steps = (edge / scale).round()
    scale = torch.where(steps != 0, edge / torch.where(steps == 0, 1.0, steps), scale).to(dtype)
    bias = torch.where(steps != 0, edge, 0.0).to(dtype)
    numbers = ((groups - bias.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15)
    words = numbers.nan_to_num().to(torch.int64).view(rows, columns // 8, 8)
    word = sum(words[..., place] << (4 * place) for place in range(8))
    assert isinstance(word, Tensor)
    return {"weight": word.to(torch.uint32).view(torch.int32), "scales": scale, "biases": bias}


def restored(tensors: dict[str, Tensor]) -> Tensor:
    """Each number times its group's scale, plus the bias."""
    words = tensors["weight"].to(torch.int64) % 2**32
    scale, bias = tensors["scales"].float(), tensors["biases"].float()
    numbers = torch.stack([words // 16**place % 16 for place in range(8)], dim=-1).float()
    groups = numbers.reshape(len(words), scale.shape[1], -1)
    return (groups * scale[..., None] + bias[..., None]).reshape(len(words), -1)


def example(name: str, model_type: str, group: int, dtype: torch.dtype, weights: str) -> QuantizationExample:
    """A checkpoint of one form."""
    return QuantizationExample(
        name=name,
        model_type=model_type,
        model_config={"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32},
        stored=partial(stored, group=group, dtype=dtype),
        restored=restored,
        quantization_config={"group_size": group, "bits": 4},
        quantized_weights=weights,
        error=0.2,
        logits_error=1.0,
    )


LAYERS = r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj\.weight"
SIZES = {"group_size": 64, "bits": 4}
Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
MLX = (
    example("groups of 32", "qwen3", 32, torch.bfloat16, LAYERS),
    example("groups of 64", "llama", 64, torch.float16, LAYERS),
    example("groups of 128 in float32, with biases", "qwen2", 128, torch.float32, LAYERS),
    example("tables too", "llama", 32, torch.bfloat16, rf"{LAYERS}|model\.embed_tokens\.weight|lm_head\.weight"),
    ConfigExample(config={}, claimed="quantized"),
    ConfigExample(config={"quant_method": "gptq", **SIZES}, claimed="quant_method"),
    ConfigExample(config={"group_size": 32, "bits": 4, "mode": "mxfp4"}, claimed="mode"),
    ConfigExample(config=SIZES, modules={Q: True, K: True}, unmatched=()),
    ConfigExample(config={**SIZES, "mode": "affine", Q: False, K: True}, modules={Q: False, K: True}, unmatched=()),
    ConfigExample(
        config={**SIZES, K: {"group_size": 32, "bits": 8}, Q: {"group_size": 32}, "lm_head": False},
        modules={Q: True, K: "bits"},
        unmatched=("lm_head",),
    ),
    ConfigExample(config={"group_size": 64, "bits": 3}, modules={Q: "bits"}),
    ConfigExample(config={"group_size": 0, "bits": 4}, error="group_size"),
    ConfigExample(config={"group_size": 64, "bits": 7}, error="bits"),
    ConfigExample(config={**SIZES, Q: {"bits": 0}}, error=Q),
    ConfigExample(config={**SIZES, "lm_head": "plain"}, error="lm_head"),
)
