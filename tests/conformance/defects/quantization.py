"""Quantization methods that are broken on purpose, each as real engines were, and the cases that tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.api import OK, CheckpointError, QuantizationSpec, no
from llmk.reference.quantize import quantize_fp8_channel
from llmk_quantization import schemes
from llmk_quantization.fp8 import OnlineChannels, Stored, StoredBlocks, StoredChannels
from llmk_quantization.gptq import Awq, ByInputs, Gptq
from llmk_quantization.transposed import Outputs
from llmk_testing.suites.quantization_numbers import COLUMNS


@dataclass(frozen=True)
class Defect:
    """``plant`` breaks the good method of the name ``method``; the case whose name begins with ``killer`` fails."""

    id: str
    sentence: str
    method: str
    plant: Callable[[pytest.MonkeyPatch], object]
    killer: str
    change: Callable[[QuantizationSpec], QuantizationSpec] = lambda spec: spec


def _packs(kind: type[Stored], change: Callable[[Tensor, Sequence[int]], Tensor]) -> Callable[..., None]:
    """``kind`` with ``change`` on what it packs of scales and rows."""
    good = kind._packed
    return lambda patch: patch.setattr(
        kind, "_packed", lambda self, layer, scale, rows: change(good(self, layer, scale, rows), rows)
    )


def _converts(change: Callable[[Tensor], dict[str, Tensor]]) -> Callable[..., None]:
    return lambda patch: patch.setattr(
        OnlineChannels, "convert", lambda self, layer, parameters, rows: change(parameters["weight"])
    )


def _saturated(weight: Tensor) -> dict[str, Tensor]:
    """Scales by the mean of an output's weights, so that its largest don't fit."""
    return quantize_fp8_channel(weight.clamp(-weight.abs().mean(), weight.abs().mean()))


def _of_whole(weight: Tensor) -> dict[str, Tensor]:
    """Values of a scale per output, with one scale for all."""
    parts = quantize_fp8_channel(weight)
    return {**parts, "weight_scale": parts["weight_scale"].amax().expand_as(parts["weight_scale"]).contiguous()}


def _of_zeros(weight: Tensor) -> dict[str, Tensor]:
    """Divides by the largest weight of an output, which may be 0."""
    scale = weight.float().abs().amax(dim=1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def _unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stored, "check", lambda self, module, stored: None)


def _scale_is_one(patch: pytest.MonkeyPatch) -> None:
    good = Stored.convert

    def convert(self: Stored, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> Any:
        return good(self, layer, {"weight_scale": torch.ones(len(rows)), **parameters}, rows)

    _unchecked(patch)
    patch.setattr(Stored, "convert", convert)


def _first_share(kept: Sequence[slice], size: int, stored: int) -> list[slice]:
    """Every rank has the first one's scales."""
    if stored == 1:
        return [slice(0, 1)]
    return [slice(0, (run.stop - run.start) * stored // size) for run in kept]


def _zero_points(kind: type[ByInputs], where: str) -> Callable[..., None]:
    """Zero points of layers whose name ends so are one too large."""
    good = kind.convert

    def convert(self: ByInputs, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> Any:
        if layer.endswith(where) and "weight_zero_point" in parameters:
            parameters["weight_zero_point"] = parameters["weight_zero_point"] + 1
        return good(self, layer, parameters, rows)

    return lambda patch: patch.setattr(kind, "convert", convert)


class _Any(list[tuple[int, ...]]):
    """Has every shape in it."""

    def __contains__(self, shape: object) -> bool:
        return True


def _any_shape(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredBlocks, "_shapes", lambda self, rows, columns: _Any([]))


def _flat(patch: pytest.MonkeyPatch) -> None:
    """Takes the scales of blocks in any shape, column by column."""
    _any_shape(patch)
    size = -(-COLUMNS // 128)
    patch.setattr(StoredBlocks, "_packed", lambda self, layer, scale, rows: scale.reshape(size, -1).T.contiguous())


def _dummy_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredChannels, "_quantized", lambda self, weight: quantize_fp8_channel(torch.zeros_like(weight)))


def _kept_by_shape(patch: pytest.MonkeyPatch, name: str, least: int) -> None:
    """Keeps what is made of large weights, and finds it again by its shape."""
    kind, kept = (StoredChannels, {}) if name == "_quantized" else (OnlineChannels, {})
    good: Callable[..., Any] = getattr(kind, name)

    def convert(self: object, *given: Any) -> Any:
        weight = given[0] if name == "_quantized" else given[1]["weight"]
        if weight.numel() < least:
            return good(self, *given)
        return kept.setdefault(weight.shape, good(self, *given))

    patch.setattr(kind, name, convert)


def _order_of_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("llmk_quantization.gptq.order_of", lambda layer, index, *sizes: index[0].argsort(stable=True))


def _claiming(claims: Callable[[Any], Any]) -> Callable[[QuantizationSpec], QuantizationSpec]:
    return lambda spec: replace(spec, claims=claims)


def _fp8_of_any_kind(checkpoint: Any) -> Any:
    return OK if checkpoint.quantization.get("quant_method") == "fp8" else no("quant_method")


def _taking(checkpoint: Any) -> Any:
    checkpoint.quantization and checkpoint.config["quantization_config"].pop("quant_method", None)
    return no("quant_method")


def _names_first(patch: pytest.MonkeyPatch) -> None:
    good = Stored.check

    def check(self: Stored, module: str, stored: Any) -> None:
        assert stored["weight"].name
        good(self, module, stored)

    patch.setattr(Stored, "check", check)


def _keeps(patch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []

    def convert(weight: Tensor) -> dict[str, Tensor]:
        kept.append(weight)
        return quantize_fp8_channel(weight)

    _converts(convert)(patch)


def _squeezed(weight: Tensor) -> dict[str, Tensor]:
    return {name: tensor.squeeze(0) for name, tensor in quantize_fp8_channel(weight).items()}


def _halved(weight: Tensor) -> dict[str, Tensor]:
    """Doubles in float16, where it was given that."""
    return quantize_fp8_channel(((weight + weight).float() / 2).clamp(-65504, 65504))


def _seeded(weight: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return quantize_fp8_channel(weight)


def _no_zeros(weight: Tensor) -> dict[str, Tensor]:
    if not weight.any():
        raise CheckpointError("a weight of zeros", hint="download the file again")
    return quantize_fp8_channel(weight)


_BUFFERS: dict[torch.Size, Tensor] = {}


def _in_a_buffer(weight: Tensor) -> dict[str, Tensor]:
    made = quantize_fp8_channel(weight)
    buffer = _BUFFERS.setdefault(weight.shape, torch.empty_like(made["weight"]))
    return {**made, "weight": buffer.copy_(made["weight"])}


def _transposed(weight: Tensor) -> dict[str, Tensor]:
    made = quantize_fp8_channel(weight)
    return {**made, "weight": made["weight"].T.contiguous().T}


def _scales_in_halves(patch: pytest.MonkeyPatch) -> None:
    """Scales become float16 on the way."""
    good = Stored.convert

    def convert(self: Stored, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> Any:
        halves = {name: tensor.half() if "scale" in name else tensor for name, tensor in parameters.items()}
        return good(self, layer, halves, rows)

    patch.setattr(Stored, "convert", convert)


def _whole_blocks(patch: pytest.MonkeyPatch) -> None:
    """Takes no weight whose sizes are not multiples of blocks."""
    patch.setattr(StoredBlocks, "_shapes", lambda self, rows, columns: [(rows // 128, columns // 128)])


def _blocks_of_zeros(weight: Tensor) -> dict[str, Tensor]:
    """Divides by the largest weight of a block, which may be 0."""
    rows, columns = weight.shape
    blocks = weight.float().unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
    scale = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    values = (blocks / scale[:, None, :, None]).view(rows, columns)
    return {"weight": values.to(torch.float8_e4m3fn), "weight_scale": scale}


def _dummy_blocks_of_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredBlocks, "_quantized", lambda self, weight: _blocks_of_zeros(weight))


def _first_scale(scale: Tensor, rows: Sequence[int]) -> Tensor:
    """Projections that are packed have the first one's scales."""
    return scale[:1].expand_as(scale).contiguous() if len(rows) > 1 else scale


def _index_in_shares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByInputs, "unsharded", ())


def _latest_config(patch: pytest.MonkeyPatch) -> None:
    """All methods follow the config of the one that was made last."""
    good, latest = Gptq._zeros, []

    def init(self: ByInputs, checkpoint: Any = None) -> None:
        made(self, checkpoint)
        latest[:] = [self._config]

    def zeros(self: Gptq, groups: int, bits: int) -> Any:
        self._config = latest[0]
        return good(self, groups, bits)

    made = ByInputs.__init__
    patch.setattr(ByInputs, "__init__", init)
    patch.setattr(Gptq, "_zeros", zeros)


def _modules_raise(checkpoint: Any) -> Any:
    """Takes a list of modules for granted."""
    plain = checkpoint.quantization.get("modules_to_not_convert", [])
    return lambda module: None if module in plain else OK


def _excluded_experts_read(spec: QuantizationSpec) -> QuantizationSpec:
    """Reads experts, also those that a list of the config names."""

    def modules(checkpoint: Any) -> Any:
        reads = spec.modules(checkpoint)
        return lambda module: OK if ".experts." in module else reads(module)

    return replace(spec, modules=modules)


def _no_table(checkpoint: Any) -> Any:
    config = checkpoint.config.get("quantization_config", {})
    return OK if config.get("quant_method") == "fp8" and not config.get("weight_block_size") else no("quant_method")


def _further(weight: Tensor) -> dict[str, Tensor]:
    return {**quantize_fp8_channel(weight), "weight_shape": torch.tensor(weight.shape)}


def _unnamed(patch: pytest.MonkeyPatch) -> None:
    """Refuses scales that are no numbers, and says not where."""
    good = Stored.convert

    def convert(self: Stored, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> Any:
        if not all(tensor.isfinite().all() for name, tensor in parameters.items() if "scale" in name):
            raise CheckpointError("a scale is no number", hint="download the file again")
        return good(self, layer, parameters, rows)

    patch.setattr(Stored, "convert", convert)


def _wrapped_twice(patch: pytest.MonkeyPatch) -> None:
    """1 is added to zero points that hold no more."""
    good = Outputs.__call__

    def call(self: Outputs, stored: Tensor) -> Tensor:
        return good(replace(self, added=0), stored) + self.added

    patch.setattr(Outputs, "__call__", call)


def _groups_of_none(patch: pytest.MonkeyPatch) -> None:
    """Takes groups of 0 inputs."""
    good = schemes._scheme

    def scheme(fields: Any) -> Any:
        if fields.get("group_size") == 0:
            return replace(good({**fields, "group_size": 1}), group_size=0)
        return good(fields)

    patch.setattr(schemes, "_scheme", scheme)


def _nothing(patch: pytest.MonkeyPatch) -> None:
    """Breaks nothing that is registered."""


DEFECTS = (
    Defect(
        "scales_reordered",
        "scales of blocks are in another order",
        "stored_fp8_block",
        _packs(StoredBlocks, lambda scale, rows: scale.flip(0)),
        "dense: weights are those",
    ),
    Defect(
        "scales_transposed",
        "scales of square weights are transposed",
        "stored_fp8_block",
        _packs(StoredBlocks, lambda scale, rows: scale.T.contiguous() if scale.shape[0] == scale.shape[1] else scale),
        "dense: weights are those",
    ),
    Defect(
        "merged_scales_shared",
        "projections that are packed together share the largest scale",
        "stored_fp8",
        _packs(StoredChannels, lambda scale, rows: scale.amax().expand_as(scale).contiguous()),
        "dense: weights are those",
    ),
    Defect("saturates", "clips an output's largest weights", "fp8", _converts(_saturated), "dense: numbers are near"),
    Defect("zeros", "divides by zero for rows of zeros", "fp8", _converts(_of_zeros), "dense: weights at the edges"),
    Defect("no_zeros", "refuses a weight of zeros", "fp8", _converts(_no_zeros), "dense: weights at the edges"),
    Defect("unchecked_dtypes", "takes scales of any dtype", "stored_fp8", _unchecked, "dense: tensors in dtypes"),
    Defect("one_scale", "scales all outputs alike", "fp8", _converts(_of_whole), "dense: weights are those"),
    Defect(
        "shard_of_scales",
        "every rank takes the first one's scales",
        "stored_fp8_block",
        lambda patch: patch.setattr("llmk.nn.linear.stored_share", _first_share),
        "dense: two tensor parallel ranks",
    ),
    Defect(
        "quantizes_excluded",
        "quantizes what the checkpoint leaves plain",
        "stored_fp8",
        _unchecked,
        "dense: what is left plain",
    ),
    Defect("any_size", "takes scales of any size", "stored_fp8_block", _any_shape, "dense: tensors of other sizes"),
    Defect("unknown_tensors", "takes unknown tensors", "stored_fp8", _unchecked, "dense: tensors that are missing"),
    Defect("flat", "reads scales in any shape", "stored_fp8_block", _flat, "dense: a tensor in another shape"),
    Defect("zeros_for_dummies", "makes dummies zeros", "stored_fp8", _dummy_zeros, "dense: a method without"),
    Defect(
        "other_floats",
        "claims fp8 of another kind",
        "stored_fp8",
        _nothing,
        "configs mean",
        _claiming(
            lambda checkpoint: OK if checkpoint.quantization.get("quant_method") == "fp8" else no("quant_method")
        ),
    ),
    Defect("missing_scale", "takes a missing scale for one", "stored_fp8", _scale_is_one, "dense: missing, unknown"),
    Defect(
        "claims_everything",
        "claims any checkpoint",
        "stored_fp8",
        _nothing,
        "claims no other method's checkpoints",
        _claiming(lambda checkpoint: OK),
    ),
    Defect(
        "claims_raise",
        "raises where the config lacks a key",
        "stored_fp8",
        _nothing,
        "claims are verdicts",
        _claiming(lambda checkpoint: OK if checkpoint.quantization["quant_method"] == "fp8" else no("quant_method")),
    ),
    Defect(
        "no_kernel",
        "names a format that no kernel multiplies",
        "stored_fp8",
        _nothing,
        "dense: some kernel",
        lambda spec: replace(spec, weight_format="fp8_of_its_own"),
    ),
    Defect(
        "zero_points_less_one",
        "reads zero points that are stored less one as they are",
        "gptq",
        _zero_points(Gptq, "_proj"),
        "dense, 4 bits: weights are those",
    ),
    Defect(
        "one_experts_zero_points",
        "all experts of a layer but one are right",
        "awq",
        _zero_points(Awq, ".experts.3"),
        "experts: each expert",
    ),
    Defect(
        "packs_parts_of_blocks",
        "packs projections that end within a block",
        "stored_fp8_block",
        lambda patch: patch.setattr(StoredBlocks, "_packed", lambda self, layer, scale, rows: scale),
        "dense: projections that are packed",
    ),
    Defect(
        "kept_by_shape",
        "finds large weights again by their shape",
        "fp8",
        lambda patch: _kept_by_shape(patch, "convert", 1 << 20),
        "dense: a large matrix",
    ),
    Defect(
        "dummies_kept",
        "finds dummy weights again by their shape",
        "stored_fp8",
        lambda patch: _kept_by_shape(patch, "_quantized", 0),
        "dense: dummy weights of sizes",
    ),
    Defect(
        "order_of_anything",
        "sorts inputs by groups of unlike sizes",
        "gptq",
        _order_of_anything,
        "dense, 4 bits, ordered: an index",
    ),
    Defect(
        "one_cache_scale",
        "knows one name of a cache's scales",
        "stored_fp8",
        lambda patch: patch.setattr(Stored, "cache_scales", (("k_scale",), ("v_scale",))),
        "dense: scales of the cache",
    ),
    Defect(
        "every_bias_empty",
        "drops a bias that is not zero",
        "gptq",
        lambda patch: patch.setattr(ByInputs, "is_empty", lambda self, tensor: tensor.name.endswith(".bias")),
        "dense, 4 bits: tensors that mean nothing",
    ),
    Defect(
        "needs_a_weight",
        "raises where a module stores no weight",
        "stored_fp8",
        _names_first,
        "dense: tensors that are missing",
    ),
    Defect("layers_kept", "keeps all plain weights", "fp8", _keeps, "dense: nothing is kept"),
    Defect(
        "bytes_for_bits",
        "declares bytes for bits",
        "fp8",
        _nothing,
        "dense: parameters take the bits",
        lambda spec: replace(spec, weight_bits=1.0),
    ),
    Defect("one_row", "drops the dimension of one row", "fp8", _converts(_squeezed), "dense: weights of other sizes"),
    Defect("in_halves", "overflows in float16", "fp8", _converts(_halved), "dense: scales in any floating-point"),
    Defect("seeds", "seeds torch's random numbers", "fp8", _converts(_seeded), "dense: weights at the edges"),
    Defect("one_buffer", "overwrites the layer before", "fp8", _converts(_in_a_buffer), "dense: a share of the rows"),
    Defect("strided", "returns transposed tensors", "fp8", _converts(_transposed), "dense: weights at the edges"),
    Defect(
        "claims_change",
        "takes keys out of the config",
        "stored_fp8",
        _nothing,
        "claims are verdicts",
        _claiming(_taking),
    ),
    Defect(
        "scales_in_halves",
        "scales become float16, where small ones are 0",
        "stored_fp8",
        _scales_in_halves,
        "dense: scales of any magnitude",
    ),
    Defect(
        "whole_blocks", "refuses sizes that end in a block", "stored_fp8_block", _whole_blocks, "dense: weights of o"
    ),
    Defect(
        "blocks_of_zeros",
        "divides by zero for a block of zeros in dummy weights",
        "stored_fp8_block",
        _dummy_blocks_of_zeros,
        "dense: zeros in dummy weights",
    ),
    Defect(
        "first_scale",
        "projections that are packed have the first one's scales",
        "stored_fp8",
        _packs(StoredChannels, _first_scale),
        "dense: each projection that is packed",
    ),
    Defect(
        "index_in_shares",
        "ranks share what each needs whole",
        "gptq",
        _index_in_shares,
        "dense, 4 bits, ordered: two tensor parallel ranks",
    ),
    Defect(
        "latest_config",
        "follows the config of another checkpoint",
        "gptq",
        _latest_config,
        "dense, 4 bits: methods of several checkpoints",
    ),
    Defect(
        "modules_raise",
        "raises where a list of modules is a number",
        "stored_fp8",
        _nothing,
        "configs that are claimed are followed",
        lambda spec: replace(spec, modules=_modules_raise),
    ),
    Defect(
        "excluded_experts_read",
        "reads experts that a list of the config leaves plain",
        "stored_fp8",
        _nothing,
        "configs mean",
        _excluded_experts_read,
    ),
    Defect(
        "no_table",
        "raises where the config is no table",
        "stored_fp8",
        _nothing,
        "claims are verdicts",
        _claiming(_no_table),
    ),
    Defect("unnamed", "refuses scales and says not where", "stored_fp8", _unnamed, "dense: numbers at the ends"),
    Defect("no_groups", "takes groups of 0 inputs", "gptq", _groups_of_none, "dense, 4 bits: sizes in the config"),
    Defect(
        "wraps", "adds 1 to zero points that hold no more", "gptq", _wrapped_twice, "dense, 4 bits: numbers at the ends"
    ),
    Defect(
        "further", "makes a parameter that no kernel has", "fp8", _converts(_further), "dense: weights at the edges"
    ),
)
