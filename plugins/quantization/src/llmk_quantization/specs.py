"""The plugin module of ``llmk-quantization``: its methods, and the checkpoints that they claim. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmk.api import OK, Checkpoint, QuantizationSpec, Verdict, hookimpl, no
from llmk.api.errors import shown
from llmk.api.specs import ReadsModule
from llmk_quantization.modules import Group, group_finder, groups_of, texts, unconverted
from llmk_quantization.schemes import NARROW, WIDE, Finder, awq_schemes, claims_awq, claims_gptq, gptq_schemes

_BLOCK = [128, 128]
Claims = Callable[[Checkpoint], Verdict]
Reads = Callable[[Group], Verdict]
"""Whether a method reads the weights of a group of compressed-tensors."""


def claims_fp8(block: bool) -> Claims:
    """Claims ``quant_method`` ``"fp8"``, with a scale per block or with one per matrix."""

    def claims(checkpoint: Checkpoint) -> Verdict:
        config = checkpoint.quantization
        return (
            _equal(config, "quant_method", "fp8")
            & _equal(config, "fmt", "e4m3", default="e4m3")
            & _equal(config, "weight_block_size", _BLOCK if block else None)
        )

    return claims


def converted(checkpoint: Checkpoint) -> ReadsModule:
    """All modules but those in ``modules_to_not_convert``."""
    plain = [unconverted(entry) for entry in texts(checkpoint.quantization, "modules_to_not_convert")]
    return lambda module: None if any(matches(module) for matches in plain) else OK


def claims_groups(reads: Reads) -> Claims:
    """Claims ``quant_method`` ``"compressed-tensors"`` with a group that the method reads."""

    def claims(checkpoint: Checkpoint) -> Verdict:
        config = checkpoint.quantization
        verdict = _equal(config, "quant_method", "compressed-tensors")
        if not verdict or not (verdict := honoured(config)):
            return verdict
        verdicts = [reads(group) for group in groups_of(config)]
        if not verdicts:
            return no("config_groups", wanted="a group of quantized weights", found="none")
        return next((verdict for verdict in verdicts if verdict), verdicts[0])

    return claims


def honoured(config: Mapping[str, Any]) -> Verdict:
    """Refuses what changes the meaning of weights or of keys and values, and is not followed."""
    verdict = OK
    sparsity, cache = config.get("sparsity_config"), config.get("kv_cache_scheme")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        verdict &= no("sparsity_config", wanted="dense", found=sparsity.get("format"))
    transforms = config.get("transform_config")
    if isinstance(transforms, Mapping) and transforms.get("config_groups"):
        verdict &= no("transform_config", wanted="no transforms", found=shown(transforms["config_groups"]))
    if isinstance(cache, Mapping) and (cache.get("type"), cache.get("num_bits")) != ("float", 8):
        verdict &= no("kv_cache_scheme", wanted="float of 8 bits", found=f"{cache.get('type')} {cache.get('num_bits')}")
    if isinstance(cache, Mapping) and cache.get("strategy", "tensor") != "tensor":
        verdict &= no("kv_cache_scheme", wanted="strategy tensor", found=cache.get("strategy"))
    return verdict


def in_groups(reads: Reads) -> Callable[[Checkpoint], ReadsModule]:
    """The modules of those groups."""

    def modules(checkpoint: Checkpoint) -> ReadsModule:
        group_of = group_finder(checkpoint.quantization)
        verdicts = {group.name: reads(group) for group in groups_of(checkpoint.quantization)}

        def verdict(module: str) -> Verdict | None:
            group = group_of(module)
            return None if group is None else verdicts[group.name]

        return verdict

    return modules


def reads_fp8(*strategies: str) -> Reads:
    """8-bit floats scaled by one of ``strategies``."""

    def reads(group: Group) -> Verdict:
        weights = group.weights
        verdict = _equal(weights, "type", "float") & _equal(weights, "num_bits", 8) & _strategy(weights, strategies)
        if weights.get("strategy") == "block":
            verdict &= _equal(weights, "block_structure", _BLOCK)
        return verdict

    return reads


def reads_int8(rounded: bool) -> Reads:
    """8-bit integers scaled by output channel or matrix, without zero points; ``rounded``: whether activations are
    integers of 8 bits, too."""

    def reads(group: Group) -> Verdict:
        weights, inputs = group.weights, group.config.get("input_activations")
        inputs = inputs if isinstance(inputs, Mapping) else {}
        found = inputs.get("type", "int") == "int" and inputs.get("num_bits") == 8
        kind = "int of 8 bits" if rounded else "other than int of 8 bits"
        return (
            _equal(weights, "type", "int", default="int")
            & _equal(weights, "num_bits", 8)
            & _strategy(weights, ("tensor", "channel"))
            & _equal(weights, "symmetric", True, default=True)
            & _format(group, ("int-quantized", "naive-quantized"))
            & (OK if found == rounded else no("input_activations", wanted=kind, found=inputs.get("num_bits", "none")))
        )

    return reads


def reads_packed(bits: int) -> Reads:
    """Integers of ``bits``, packed, scaled by groups of inputs or by output channel."""

    def reads(group: Group) -> Verdict:
        weights = group.weights
        return (
            _equal(weights, "type", "int", default="int")
            & _equal(weights, "num_bits", bits)
            & _strategy(weights, ("group", "channel"))
            & _format(group, ("pack-quantized",))
        )

    return reads


def by_scheme(
    schemes: Callable[[Mapping[str, Any]], Finder], bits: tuple[int, ...]
) -> Callable[[Checkpoint], ReadsModule]:
    """The modules of so many ``bits``."""

    def modules(checkpoint: Checkpoint) -> ReadsModule:
        scheme_of = schemes(checkpoint.quantization)

        def verdict(module: str) -> Verdict | None:
            scheme = scheme_of(module)
            if scheme is None:
                return None
            return OK if scheme.bits in bits else no("bits", wanted=" or ".join(map(str, bits)), found=scheme.bits)

        return verdict

    return modules


def claims_plain(checkpoint: Checkpoint) -> Verdict:
    """Claims weights that are not quantized yet."""
    if not checkpoint.quantization:
        return OK
    found = checkpoint.quantization.get("quant_method", "unnamed")
    return no("quantized", wanted="plain weights", found=found, hint="leave out model.quantization")


def _equal(config: Mapping[str, Any], key: str, wanted: Any, default: Any = None) -> Verdict:
    found = config.get(key, default)
    return OK if found == wanted else no(key, wanted=wanted, found=found)


def _strategy(weights: Mapping[str, Any], known: tuple[str, ...]) -> Verdict:
    found = weights.get("strategy")
    return OK if found in known else no("strategy", wanted=" or ".join(known), found=found)


def _format(group: Group, known: tuple[str, ...]) -> Verdict:
    return OK if group.stored in known else no("format", wanted=" or ".join(known), found=group.stored)


@dataclass(frozen=True, slots=True)
class _Method:
    """A method. ``options`` are further fields of its spec."""

    name: str
    implementation: str
    weight_format: str
    claims: Claims
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)


def _of_groups(name: str, implementation: str, weight_format: str, reads: Reads, summary: str, **spec: Any) -> _Method:
    options = {"modules": in_groups(reads), **spec}
    return _Method(name, implementation, weight_format, claims_groups(reads), f"compressed-tensors, {summary}", options)


_CONVERTED, _ONLINE = {"modules": converted}, {"online": True}
_METHODS = (
    _Method(
        *("stored_fp8", "fp8:StoredChannels", "fp8_channel", claims_fp8(block=False)),
        *("fp8 checkpoints, a scale per matrix", _CONVERTED),
    ),
    _Method(
        *("stored_fp8_block", "fp8:StoredBlocks", "fp8_block", claims_fp8(block=True)),
        *("fp8 checkpoints, scales per 128x128", _CONVERTED),
    ),
    _of_groups(
        *("compressed_tensors", "fp8:StoredChannels", "fp8_channel", reads_fp8("tensor", "channel")),
        "fp8 with a scale per matrix or output",
    ),
    _of_groups(
        *("compressed_tensors_block", "fp8:StoredBlocks", "fp8_block", reads_fp8("block")),
        "fp8 with scales per 128x128",
    ),
    _of_groups(
        *("compressed_tensors_int8", "ints:StoredInt8", "int8_channel", reads_int8(rounded=False)),
        "int8 with a scale per matrix or output",
    ),
    _of_groups(
        *("compressed_tensors_w8a8", "ints:StoredInt8", "int8_dynamic", reads_int8(rounded=True)),
        "int8 with a scale per matrix or output, activations in int8",
    ),
    _of_groups(
        *("compressed_tensors_int4", "ints:PackedInt4", "int4_group", reads_packed(4)),
        "packed int4 with scales per group of inputs",
        weight_bits=4.5,
    ),
    _of_groups(
        *("compressed_tensors_int8_packed", "ints:PackedInt8", "int8_group", reads_packed(8)),
        "packed int8 with scales per group of inputs",
        weight_bits=8.5,
    ),
    _Method(
        *("gptq", "gptq:Gptq", "int4_group", lambda checkpoint: claims_gptq(checkpoint.quantization, NARROW)),
        "GPTQ of 2, 3 or 4 bits",
        {"modules": by_scheme(gptq_schemes, NARROW), "weight_bits": 4.5, "heads": True},
    ),
    _Method(
        *("gptq_int8", "gptq:Gptq8", "int8_group", lambda checkpoint: claims_gptq(checkpoint.quantization, WIDE)),
        "GPTQ of 8 bits",
        {"modules": by_scheme(gptq_schemes, WIDE), "weight_bits": 8.5, "heads": True},
    ),
    _Method(
        *("awq", "gptq:Awq", "int4_group", lambda checkpoint: claims_awq(checkpoint.quantization)),
        "AWQ of 4 bits",
        {"modules": by_scheme(awq_schemes, NARROW), "weight_bits": 4.5},
    ),
    _Method(
        *("fp8", "fp8:OnlineChannels", "fp8_channel", claims_plain),
        *("fp8 while loading, a scale per output", _ONLINE),
    ),
    _Method(
        *("fp8_tensor", "fp8:OnlineTensors", "fp8_channel", claims_plain),
        *("fp8 while loading, a scale per matrix", _ONLINE),
    ),
    _Method(
        *("fp8_block", "fp8:OnlineBlocks", "fp8_block", claims_plain),
        *("fp8 while loading, scales per 128x128", _ONLINE),
    ),
)


@hookimpl
def llmk_quantization_methods() -> Iterable[QuantizationSpec]:
    """Methods for stored fp8 and integer weights, and for quantizing plain weights to fp8 while loading."""
    return [
        QuantizationSpec(
            id=f"quantization.{method.name}",
            name=method.name,
            weight_format=method.weight_format,
            claims=method.claims,
            implementation=f"llmk_quantization.{method.implementation}",
            examples=f"llmk_quantization.examples:of.{method.name}",
            summary=method.summary,
            **method.options,
        )
        for method in _METHODS
    ]
