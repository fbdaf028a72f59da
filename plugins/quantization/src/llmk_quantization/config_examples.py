"""Configs of checkpoints for the conformance kit, and what their tools mean by them: GPTQModel and AutoGPTQ, AutoAWQ,
compressed-tensors, and transformers' fp8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk_testing.quantization_example import ConfigExample

LAYER = "model.layers.{}.{}"
Q, K, UP, DOWN, GATE = "self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate"
Q0, UP0, UP1 = LAYER.format(0, Q), LAYER.format(0, UP), LAYER.format(1, UP)
_NOT_TEXTS, _NO_PATTERN = "which is not a list of texts", "which is not a regular expression"


def _refused(key: str, value: Any, wanted: str, base: Mapping[str, Any]) -> ConfigExample:
    """A value that the method can't follow, which the error names."""
    return ConfigExample(
        config={**base, key: value}, modules={Q0: True}, error=f"{key} = {value!r}, which is not {wanted}"
    )


def _claims(base: Mapping[str, Any], **refused: tuple[Any, ...]) -> tuple[ConfigExample, ...]:
    """Values of fields for which a checkpoint isn't claimed, with the field as the reason."""
    return tuple(
        ConfigExample(config={**base, key: value}, claimed=key) for key, values in refused.items() for value in values
    )


_GPTQ: Mapping[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
_GPTQ8 = {**_GPTQ, "bits": 8}
_RULES: Mapping[str, Any] = {
    "-:.*layers[.]1[.].*up": {},
    "+:.*up_proj": {"bits": 8, "group_size": 64},
    ".*down": {"desc_act": True},
}
_MIXED = {**_GPTQ, "dynamic": dict(_RULES)}
_LISTED = {**_GPTQ, "modules_in_block_to_quantize": [[Q, K], UP]}
_IN_LISTS = {
    Q0: True,
    LAYER.format(3, K): True,
    UP1: True,
    LAYER.format(0, DOWN): False,
    "x.up_proj": False,
    "lm_head": False,
}
GPTQ = (
    ConfigExample(config=_GPTQ, modules={Q0: True, "lm_head": False}, unmatched=()),
    *(ConfigExample(config={**_GPTQ, "bits": bits}, modules={Q0: True}) for bits in (2, 3)),
    ConfigExample(config={**_GPTQ, "bits": 8}, claimed="bits"),
    *(ConfigExample(config={**_GPTQ, "checkpoint_format": name}) for name in ("gptq", "gptq_v2", None)),
    *(ConfigExample(config={**_GPTQ, "format": name}) for name in ("gptq", "gptq_v2", None)),
    ConfigExample(config={**_GPTQ, "pack_dtype": "int32", "is_marlin_format": False, "adapter": None, "rotation": ""}),
    *_claims(
        _GPTQ,
        quant_method=("awq", None, "GPTQ"),
        checkpoint_format=("marlin", 4),
        format=("marlin", "bitblas"),
        pack_dtype=("int16", "int8"),
        is_marlin_format=(True,),
        adapter=({"name": "lora"},),
        rotation=("hadamard",),
        bits=(5, 1, 16, "4", None, True, 4.0),
    ),
    ConfigExample(config=_MIXED, modules={Q0: True, UP1: False, UP0: "bits", "lm_head": False}, unmatched=(".*down",)),
    ConfigExample(
        config={**_GPTQ, "dynamic": {"+:.*up": {"bits": 2}, "-:visual": {}, "-:lm_head": {}}},
        modules={Q0: True, UP0: True},
        unmatched=("-:visual",),
    ),
    ConfigExample(config={**_GPTQ, "dynamic": {"+:.*up": {"bits": 7}}}, claimed="bits"),
    ConfigExample(config={**_GPTQ, "dynamic": {"+:.*up": {"sym": True}}}, modules={Q0: True, UP0: True}),
    ConfigExample(config=_LISTED, modules=_IN_LISTS),
    ConfigExample(config={**_LISTED, "lm_head": True}, modules={**_IN_LISTS, "lm_head": True}),
    ConfigExample(config={**_GPTQ, "lm_head": True}, modules={Q0: True, "lm_head": True}),
    ConfigExample(config={**_GPTQ, "lm_head": None, "desc_act": None, "group_size": -1}, modules={Q0: True}),
    *(_refused("group_size", size, "-1 or a number of inputs", _GPTQ) for size in (0, -2, "all", None, True, 32.0)),
    *(_refused("desc_act", value, "true or false", _GPTQ) for value in ("yes", 2)),
    *(_refused("lm_head", value, "true or false", _GPTQ) for value in ("yes", ["yes"])),
    *(_refused("modules_in_block_to_quantize", names, "lists of texts", _GPTQ) for names in ([7], [[7]])),
    ConfigExample(
        config={**_GPTQ, "modules_in_block_to_quantize": "mlp"}, modules={Q0: True}, error="which is not lists of texts"
    ),
    ConfigExample(config={**_GPTQ, "dynamic": [7]}, modules={Q0: True}, error="dynamic = [7], which is not an object"),
    ConfigExample(config={**_GPTQ, "dynamic": {".*": 7}}, modules={Q0: True}, error="= 7, which is not an object"),
    ConfigExample(config={**_GPTQ, "dynamic": {"(": {}}}, modules={Q0: True}, error=_NO_PATTERN),
)
GPTQ_INT8 = (
    ConfigExample(config=_GPTQ8, modules={Q0: True, "lm_head": False}),
    *_claims(_GPTQ8, bits=(4, 3, 2, 5, None)),
    ConfigExample(config=_MIXED, modules={Q0: "bits", UP0: True, UP1: False}),
    ConfigExample(config={**_MIXED, "dynamic": {"+:.*up": {"bits": 3}}}, claimed="bits"),
)
_AWQ: Mapping[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
AWQ = (
    ConfigExample(config=_AWQ, modules={Q0: True, "lm_head": False}),
    ConfigExample(
        config={"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}, modules={Q0: True}
    ),
    ConfigExample(config={"quant_method": "awq", "bits": 4, "group_size": -1, "format": "gemm"}, modules={Q0: True}),
    ConfigExample(config={"quant_method": "awq", "bits": 4, "group_size": 64}, modules={Q0: True}),
    *_claims(
        _AWQ,
        quant_method=("gptq", None),
        version=("gemv", "marlin", 7),
        bits=(8, 3, None, "4", 4.0),
        zero_point=(False, None, 1),
    ),
    ConfigExample(
        config={**_AWQ, "modules_to_not_convert": [GATE, "layers.1", "visual"]},
        modules={Q0: True, LAYER.format(0, GATE): False, LAYER.format(0, "mlp.gate_proj"): True, UP1: False},
        unmatched=("visual",),
    ),
    _refused("group_size", 0, "-1 or a number of inputs", _AWQ),
)

_FP8: Mapping[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_BLOCKS: Mapping[str, Any] = {**_FP8, "weight_block_size": [128, 128]}
_NOT_CONVERTED = (
    (["lm_head"], {"lm_head": False, Q0: True}),
    (["model.layers.1"], {UP1: False, LAYER.format(10, UP): True, UP0: True}),
    (["model.layers.1."], {UP1: False, LAYER.format(10, UP): False, UP0: True}),  # the last point is any character
    ([GATE], {LAYER.format(0, GATE): False, LAYER.format(0, "mlp.gate_proj"): True, "mlp.gate.x": False}),
    (["q_proj"], {Q0: False, UP0: True}),
    (["gate"], {LAYER.format(0, GATE): False, LAYER.format(0, "mlp.gate_proj"): True}),
    (["model.layers.(1|11).mlp.up_proj"], {UP1: False, UP0: True, LAYER.format(1, Q): True}),
    ([r"model\.layers\.\d+\.mlp"], {UP0: False, Q0: True}),
)
"""Lists that mean what ``should_convert_module`` of transformers makes of them."""


def _converted(base: Mapping[str, Any]) -> tuple[ConfigExample, ...]:
    return (
        ConfigExample(config={**base, "modules_to_not_convert": None}, modules={Q0: True}, unmatched=()),
        *(ConfigExample(config={**base, "modules_to_not_convert": e}, modules=m) for e, m in _NOT_CONVERTED),
        ConfigExample(
            config={**base, "modules_to_not_convert": ["lm_head", GATE, "visual"]},
            modules={LAYER.format(0, GATE): False},
            unmatched=("visual",),
        ),
        ConfigExample(config={**base, "modules_to_not_convert": ["("]}, modules={Q0: True}, error=_NO_PATTERN),
        ConfigExample(config={**base, "modules_to_not_convert": "lm_head"}, modules={Q0: True}, error=_NOT_TEXTS),
        ConfigExample(config={**base, "modules_to_not_convert": [7]}, modules={Q0: True}, error=_NOT_TEXTS),
    )


AWQ += _converted(_AWQ)
STORED_FP8 = (
    *_claims(_FP8, quant_method=("gptq", "FP8"), fmt=("e5m2",), weight_block_size=([128, 128], [64, 64])),
    *_converted({**_FP8, "fmt": "e4m3"}),
)
STORED_FP8_BLOCK = (
    *_claims(_BLOCKS, quant_method=("gptq",), fmt=("e5m2",), weight_block_size=(None, [64, 64], [128], 128)),
    *_converted(_BLOCKS),
)


def _group(*targets: str, **weights: Any) -> dict[str, Any]:
    stored = weights.pop("stored", None)
    given = {"targets": list(targets), "weights": weights}
    return given | ({"format": stored} if stored else {})


def _groups(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": named, **more}


def _of_groups(good: Mapping[str, Any], others: Mapping[str, tuple[Any, ...]]) -> tuple[ConfigExample, ...]:
    """Configs of groups of ``good`` weights: what selects modules, and ``others``, values that are not read."""
    rank = _groups(
        _group("Linear", type="int", num_bits=99),
        _group("re:.*mlp.*", **good),
        _group(UP1, type="int", num_bits=77),
        ignore=["lm_head", "re:.*experts"],
    )
    one = _groups(_group("Linear", **good), ignore=["lm_head"])
    return (
        ConfigExample(config=one, modules={Q0: True, "lm_head": False}, unmatched=()),
        ConfigExample(
            config=rank,
            modules={UP0: True, LAYER.format(0, "mlp.experts.0.up_proj"): False, "lm_head": False},
            unmatched=(UP1,),
        ),
        ConfigExample(config=_groups(_group("re:.*mlp.*", **good)), modules={UP0: True, Q0: False}),
        ConfigExample(config=_groups(_group(Q0, **good)), modules={Q0: True, f"{Q0}.x": False, UP0: False}),
        ConfigExample(
            config=_groups(_group("Linear", **good), {"targets": ["Linear"], "weights": None}), modules={Q0: True}
        ),
        ConfigExample(
            config=_groups(_group("Linear", "re:.*vision.*", **good), ignore=["model.layers.7", "re:.*o_proj"]),
            modules={Q0: True},
            unmatched=("model.layers.7", "re:.*o_proj", "re:.*vision.*"),
        ),
        ConfigExample(config={**one, "quant_method": "gptq"}, claimed="quant_method"),
        ConfigExample(config={**one, "config_groups": {}}, claimed="config_groups"),
        ConfigExample(config={**one, "config_groups": None}, claimed="config_groups"),
        ConfigExample(config={**one, "sparsity_config": {"format": "dense"}, "kv_cache_scheme": None}),
        ConfigExample(config={**one, "kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor"}}),
        ConfigExample(config={**one, "transform_config": {"config_groups": {}}}),
        *_claims(
            one,
            sparsity_config=({"format": "sparse-24-bitmask"},),
            transform_config=({"config_groups": {"R1": {}}},),
            kv_cache_scheme=(
                {"type": "int", "num_bits": 8},
                {"type": "float", "num_bits": 4},
                {"type": "float", "num_bits": 8, "strategy": "channel"},
            ),
        ),
        ConfigExample(config={**one, "ignore": "lm_head"}, modules={Q0: True}, error=_NOT_TEXTS),
        ConfigExample(config={**one, "ignore": ["re:model.("]}, modules={Q0: True}, error=_NO_PATTERN),
        *(
            ConfigExample(config=_groups(_group("Linear", **{**good, key: value})), claimed=code)
            for key, values in others.items()
            for value, code in ((value, "format" if key == "stored" else key) for value in values)
        ),
    )


COMPRESSED_TENSORS = _of_groups(
    {"type": "float", "num_bits": 8, "strategy": "channel"},
    {"type": ("int", None), "num_bits": (4, 16), "strategy": ("block", "group", None)},
)
COMPRESSED_TENSORS_BLOCK = _of_groups(
    {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
    {"type": ("int",), "num_bits": (4,), "strategy": ("tensor", "group"), "block_structure": ([64, 128], None)},
)
_INT8 = {"type": "int", "num_bits": 8, "strategy": "channel", "stored": "int-quantized"}
_NOT_INT8 = {
    "type": ("float",),
    "num_bits": (4,),
    "strategy": ("group", "block"),
    "symmetric": (False,),
    "stored": ("pack-quantized", "float-quantized"),
}
COMPRESSED_TENSORS_INT8 = (
    *_of_groups(_INT8, _NOT_INT8),
    ConfigExample(config=_groups(_group("Linear", **{**_INT8, "stored": "naive-quantized", "strategy": "tensor"}))),
)


def _with_inputs(**inputs: Any) -> dict[str, Any]:
    return _groups({**_group("Linear", **_INT8), "input_activations": inputs or None})


COMPRESSED_TENSORS_INT8 += (
    ConfigExample(config=_with_inputs()),
    ConfigExample(config=_with_inputs(type="float", num_bits=8)),
    ConfigExample(config=_with_inputs(type="int", num_bits=4)),
    ConfigExample(config=_with_inputs(type="int", num_bits=8), claimed="input_activations"),
)
COMPRESSED_TENSORS_W8A8 = (
    ConfigExample(config=_with_inputs(type="int", num_bits=8)),
    ConfigExample(config=_with_inputs(num_bits=8)),
    ConfigExample(config=_with_inputs(type="float", num_bits=8), claimed="input_activations"),
    ConfigExample(config=_with_inputs(type="int", num_bits=4), claimed="input_activations"),
    ConfigExample(config=_with_inputs(), claimed="input_activations"),
)
_PACKED = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "stored": "pack-quantized"}
_NOT_PACKED = {"type": ("float",), "strategy": ("tensor", "block"), "stored": ("int-quantized", "float-quantized")}
COMPRESSED_TENSORS_INT4 = (
    *_of_groups(_PACKED, {**_NOT_PACKED, "num_bits": (8, 3)}),
    *_of_groups({**_PACKED, "strategy": "channel"}, {})[:1],
)
COMPRESSED_TENSORS_INT8_PACKED = _of_groups({**_PACKED, "num_bits": 8}, {**_NOT_PACKED, "num_bits": (4,)})

FP8 = FP8_TENSOR = FP8_BLOCK = (ConfigExample(config={}), ConfigExample(config=_FP8, claimed="quantized"))
