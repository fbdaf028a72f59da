"""Example checkpoints for the conformance kit. Needs transformers, which writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
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
from llmk_quantization import config_examples
from llmk_quantization.gptq_examples import grouped, ordered_index, restored_awq, restored_gptq, stored_awq, stored_gptq
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


def compressed(
    stored: str = "float-quantized", inputs: Mapping[str, Any] | None = None, **weights: Any
) -> dict[str, Any]:
    """The config of compressed-tensors with one group of ``weights`` in the format ``stored``, and of the activations
    ``inputs``."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}
    group |= {"input_activations": dict(inputs)} if inputs else {}
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
            cache_scales=CACHE if config else ((), ()),
            unused=tuple(extra or ()),
        )
        for name, (model_type, sizes) in MODELS.items()
    )


CACHE = (("k_scale", "k_proj.k_scale", "k_proj.output_scale"), ("v_scale", "v_proj.v_scale", "v_proj.output_scale"))
"""Names of the scales of a cache: of today's tools, of older ones, and of those that observe the projections."""

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
_INT8_INPUTS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
COMPRESSED_TENSORS_W8A8 = _examples(
    quantize_int8_channel, compressed("int-quantized", _INT8_INPUTS, type="int", strategy="channel")
)
COMPRESSED_TENSORS_INT4 = tuple(
    QuantizationExample(
        cache_scales=CACHE,
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


_ERRORS = {2: 0.9, 3: 0.5, 4: 0.3, 8: 0.05}


def _gptq(
    name: str, bits: int, group_size: int, *, v2: bool = False, ordered: bool = False
) -> tuple[QuantizationExample, ...]:
    """A dense and a sparse model."""
    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": ordered, "sym": False}
    written = "gptq_v2" if v2 else "gptq" if ordered else ""  # the default
    return tuple(
        QuantizationExample(
            cache_scales=CACHE,
            empty=("bias",),
            name=f"{model}, {name}",
            model_type=model_type,
            model_config={**SIZES, **sizes},
            stored=partial(stored_gptq, bits=bits, group_size=group_size, v2=v2, ordered=ordered),
            restored=partial(restored_gptq, bits=bits, v2=v2),
            quantization_config=config | ({"checkpoint_format": written} if written else {}),
            unused=() if ordered else ("g_idx",),
            error=_ERRORS[bits],
            logits_error=2 * _ERRORS[bits],
        )
        for model, (model_type, sizes) in MODELS.items()
    )


GPTQ = (
    *_gptq("4 bits", 4, 32),
    *_gptq("4 bits, ordered", 4, 64, ordered=True),
    *_gptq("4 bits, whole rows, v2", 4, -1, v2=True)[:1],
    *_gptq("3 bits, whole rows, v2", 3, -1, v2=True)[:1],
    *_gptq("2 bits", 2, 64)[:1],
)
GPTQ_INT8 = (*_gptq("8 bits", 8, 128), *_gptq("8 bits, ordered", 8, 32, v2=True, ordered=True)[:1])
AWQ = tuple(
    QuantizationExample(
        cache_scales=CACHE,
        name=name,
        model_type=model_type,
        model_config={**SIZES, **sizes},
        stored=partial(stored_awq, group_size=64),
        restored=restored_awq,
        empty=("bias",),
        quantization_config={"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        error=0.3,
        logits_error=0.6,
    )
    for name, (model_type, sizes) in MODELS.items()
)


def packed_in_order(weight: Tensor, group_size: int = 64) -> dict[str, Tensor]:
    """A weight ``[out, in]`` as compressed-tensors packed it with ``actorder`` ``group``."""
    index = ordered_index(weight.shape[1], group_size)
    order = index.argsort(stable=True)
    parts = packed_int4(weight[:, order], group_size, symmetric=False)
    numbers = torch.stack([parts["weight_packed"] >> 4 * i & 15 for i in range(8)], dim=-1).flatten(1)
    given = torch.empty_like(numbers).index_copy_(1, order, numbers).to(torch.uint8)
    words = (given[:, 0::2] | given[:, 1::2] << 4).view(torch.int32)
    return {**parts, "weight_packed": words, "weight_g_idx": index}


def unpacked_in_order(parts: Mapping[str, Tensor]) -> Tensor:
    """Dequantizes the numbers of :func:`packed_in_order`, input by input."""
    numbers = torch.stack([parts["weight_packed"] >> 4 * i & 15 for i in range(8)], dim=-1).flatten(1)
    zero = torch.stack([parts["weight_zero_point"] >> 4 * i & 15 for i in range(8)], dim=1).flatten(0, 1)
    index = parts["weight_g_idx"].long()
    return (numbers - zero[:, index]) * parts["weight_scale"].float()[:, index]


ORDERED_INT4 = tuple(
    QuantizationExample(
        cache_scales=CACHE,
        name=f"{name}, ordered",
        model_type=model_type,
        model_config={**SIZES, **sizes},
        stored=packed_in_order,
        restored=unpacked_in_order,
        quantization_config=compressed(
            "pack-quantized",
            type="int",
            num_bits=4,
            strategy="group",
            group_size=64,
            symmetric=False,
            actorder="group",
        ),
        error=0.3,
        logits_error=0.6,
    )
    for name, (model_type, sizes) in MODELS.items()
)
COMPRESSED_TENSORS_INT4 += ORDERED_INT4


def packed_int8(weight: Tensor, group_size: int = 128) -> dict[str, Tensor]:
    """A weight ``[out, in]`` as compressed-tensors packs 8-bit numbers."""
    groups = weight.float().unflatten(1, (-1, group_size))
    scale = (groups.abs().amax(-1) / 127).clamp(min=1e-8).bfloat16()
    numbers = (groups / scale.float()[..., None]).round().clamp(-127, 127).flatten(1) + 128
    packed = numbers.to(torch.uint8).contiguous().view(torch.int32)
    return {"weight_packed": packed, "weight_scale": scale, "weight_shape": tensor(weight.shape)}


def unpacked_int8(parts: Mapping[str, Tensor]) -> Tensor:
    """Dequantizes the numbers of :func:`packed_int8`."""
    words, scale = parts["weight_packed"], parts["weight_scale"].float()
    numbers = torch.stack([words >> 8 * i & 255 for i in range(4)], dim=-1).view(*scale.shape, -1)
    return ((numbers - 128) * scale[..., None]).view(words.shape[0], -1)


def packed_int8_in_order(weight: Tensor, group_size: int = 64) -> dict[str, Tensor]:
    """A weight ``[out, in]`` as compressed-tensors packs 8-bit numbers with zero points and ``actorder`` ``group``."""
    index = ordered_index(weight.shape[1], group_size)
    numbers, zero, scale = grouped(weight, 8, group_size, index)
    rows = zero.T.int().unflatten(0, (-1, 4))
    return {
        "weight_packed": numbers.T.contiguous().view(torch.int32),
        "weight_scale": scale.T.contiguous(),
        "weight_zero_point": torch.stack([rows[:, i] << 8 * i for i in range(4)]).sum(0).int(),
        "weight_shape": tensor(weight.shape),
        "weight_g_idx": index,
    }


def unpacked_int8_in_order(parts: Mapping[str, Tensor]) -> Tensor:
    """Dequantizes the numbers of :func:`packed_int8_in_order`, input by input."""
    numbers = torch.stack([parts["weight_packed"] >> 8 * i & 255 for i in range(4)], dim=-1).flatten(1)
    zero = torch.stack([parts["weight_zero_point"] >> 8 * i & 255 for i in range(4)], dim=1).flatten(0, 1)
    index = parts["weight_g_idx"].long()
    return (numbers - zero[:, index]) * parts["weight_scale"].float()[:, index]


COMPRESSED_TENSORS_INT8_PACKED = tuple(
    QuantizationExample(
        cache_scales=CACHE,
        name=f"{name}{kind}",
        model_type=model_type,
        model_config={**SIZES, **sizes},
        stored=stored,
        restored=restored,
        quantization_config=compressed("pack-quantized", type="int", num_bits=8, strategy="group", **weights),
    )
    for name, (model_type, sizes) in MODELS.items()
    for kind, stored, restored, weights in (
        ("", packed_int8, unpacked_int8, {"group_size": 128, "symmetric": True}),
        (
            *(", ordered, with zero points", packed_int8_in_order, unpacked_int8_in_order),
            {"group_size": 64, "symmetric": False, "actorder": "group"},
        ),
    )
)

_CHECKPOINTS: Mapping[str, tuple[QuantizationExample, ...]] = {
    "stored_fp8": STORED_FP8,
    "stored_fp8_block": STORED_FP8_BLOCK,
    "compressed_tensors": COMPRESSED_TENSORS,
    "compressed_tensors_block": COMPRESSED_TENSORS_BLOCK,
    "compressed_tensors_int8": COMPRESSED_TENSORS_INT8,
    "compressed_tensors_w8a8": COMPRESSED_TENSORS_W8A8,
    "compressed_tensors_int4": COMPRESSED_TENSORS_INT4,
    "compressed_tensors_int8_packed": COMPRESSED_TENSORS_INT8_PACKED,
    "gptq": GPTQ,
    "gptq_int8": GPTQ_INT8,
    "awq": AWQ,
    "fp8": FP8,
    "fp8_tensor": FP8_TENSOR,
    "fp8_block": FP8_BLOCK,
}
of = SimpleNamespace(
    **{name: (*found, *getattr(config_examples, name.upper(), ())) for name, found in _CHECKPOINTS.items()}
)
"""By method: its checkpoints, and the configs that it understands."""
