"""The plugin module of ``llmk-quantization``: its methods, and the checkpoints that they claim. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmk.api import OK, Checkpoint, QuantizationSpec, Verdict, hookimpl, no

_BLOCK = [128, 128]


def claims_fp8(block: bool) -> Callable[[Checkpoint], Verdict]:
    """Claims ``quant_method`` ``"fp8"``, with a scale per block or with one per matrix."""

    def claims(checkpoint: Checkpoint) -> Verdict:
        config = checkpoint.quantization
        return (
            _equal(config, "quant_method", "fp8")
            & _equal(config, "fmt", "e4m3", default="e4m3")
            & _equal(config, "weight_block_size", _BLOCK if block else None)
        )

    return claims


def claims_compressed(*strategies: str) -> Callable[[Checkpoint], Verdict]:
    """Claims ``quant_method`` ``"compressed-tensors"`` with 8-bit floats scaled by one of ``strategies``."""

    def claims(checkpoint: Checkpoint) -> Verdict:
        config = checkpoint.quantization
        if not (verdict := _equal(config, "quant_method", "compressed-tensors")):
            return verdict
        groups = list(_object(config.get("config_groups")).values())
        for weights in (_object(_object(group).get("weights")) for group in groups):
            verdict &= _equal(weights, "type", "float") & _equal(weights, "num_bits", 8)
            if weights.get("strategy") not in strategies:
                verdict &= no("strategy", wanted=" or ".join(strategies), found=weights.get("strategy"))
            if weights.get("strategy") == "block":
                verdict &= _equal(weights, "block_structure", _BLOCK)
        return verdict if groups else no("config_groups", wanted="a group of quantized weights", found="none")

    return claims


def claims_plain(checkpoint: Checkpoint) -> Verdict:
    """Claims weights that are not quantized yet."""
    if not checkpoint.quantization:
        return OK
    found = checkpoint.quantization.get("quant_method", "unnamed")
    return no("quantized", wanted="plain weights", found=found, hint="leave out model.quantization")


def _object(value: Any) -> Mapping[str, Any]:
    """An object of the config; an empty one if the value is not an object."""
    return value if isinstance(value, Mapping) else {}


def _equal(config: Mapping[str, Any], key: str, wanted: Any, default: Any = None) -> Verdict:
    found = config.get(key, default)
    return OK if found == wanted else no(key, wanted=wanted, found=found)


_METHODS: tuple[tuple[str, str, str, Callable[[Checkpoint], Verdict], str], ...] = (
    ("stored_fp8", "StoredChannels", "fp8_channel", claims_fp8(block=False), "fp8 checkpoints, a scale per matrix"),
    ("stored_fp8_block", "StoredBlocks", "fp8_block", claims_fp8(block=True), "fp8 checkpoints, scales per 128x128"),
    (
        "compressed_tensors",
        "StoredChannels",
        "fp8_channel",
        claims_compressed("tensor", "channel"),
        "compressed-tensors, fp8 with a scale per matrix or output",
    ),
    (
        "compressed_tensors_block",
        "StoredBlocks",
        "fp8_block",
        claims_compressed("block"),
        "compressed-tensors, fp8 with scales per 128x128",
    ),
    ("fp8", "OnlineChannels", "fp8_channel", claims_plain, "fp8 while loading, a scale per output"),
    ("fp8_tensor", "OnlineTensors", "fp8_channel", claims_plain, "fp8 while loading, a scale per matrix"),
    ("fp8_block", "OnlineBlocks", "fp8_block", claims_plain, "fp8 while loading, scales per 128x128"),
)


@hookimpl
def llmk_quantization_methods() -> Iterable[QuantizationSpec]:
    """Methods for stored fp8 weights, and for quantizing plain weights to fp8 while loading."""
    return [
        QuantizationSpec(
            id=f"quantization.{name}",
            name=name,
            weight_format=weight_format,
            claims=claims,
            implementation=f"llmk_quantization.fp8:{kind}",
            online=claims is claims_plain,
            examples=f"llmk_quantization.examples:{name.upper()}",
            summary=summary,
        )
        for name, kind, weight_format, claims, summary in _METHODS
    ]
