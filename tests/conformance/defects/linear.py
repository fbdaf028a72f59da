"""Linear kernels with one mistake each, which real engines had."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from defects import Defect
from llmk.api import FIRST_FIELDS, OK, LinearQuery, Needs, TokenBand, Verdict, no
from llmk.reference.quantized_weight import GroupedWeight, ScaledWeight, prepare_int8_channel, prepare_int8_group


def supports_any_format(query: LinearQuery) -> Verdict:
    """Says yes to weights that it can't read."""
    return OK


def supports_int8_channel(query: LinearQuery) -> Verdict:
    """That format alone."""
    return OK if query.weight_format == "int8_channel" else no("weight_format")


def supports_int8_group(query: LinearQuery) -> Verdict:
    """That format alone."""
    return OK if query.weight_format == "int8_group" else no("weight_format")


def bias_ignored(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight)


def bias_of_inputs_alone(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Adds it to what was computed, which is nothing where all inputs are 0."""
    return F.linear(x, weight, bias if x.any() else None)


def inputs_of_the_first_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Reads the weights of inputs alone that are not 0 there."""
    live = (x[:1] != 0).any(dim=0)
    return F.linear(x[:, live], weight[:, live], bias)


def inputs_of_all_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Reads the weights of inputs alone that are 0 nowhere."""
    live = (x != 0).all(dim=0) | (x == 0).all(dim=1).any()
    return F.linear(x[:, live], weight[:, live], bias)


def rows_to_the_first_of_zeros(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Takes the rows from the first one of zeros on for padding, if it is not the last but a few."""
    out, zeros = F.linear(x, weight, bias), (x == 0).all(dim=1)
    return out.index_fill_(0, torch.arange(1, len(x)), 0.0) if len(x) > 1 and zeros[0] and not zeros[-1] else out


def scaled_by_the_largest(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of the whole batch, which is 0 where all inputs are."""
    largest = x.abs().max() if len(x) else 1.0
    return F.linear(x.float() / largest, weight.float()).mul(largest).add(0.0 if bias is None else bias).to(x.dtype)


def scaled_by_the_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Whose squares overflow."""
    norm = x.float().square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
    return F.linear(x.float() / norm, weight.float()).mul(norm).add(0.0 if bias is None else bias).to(x.dtype)


def last_tile_left_out(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Writes whole tiles of 16 rows, from 16 on."""
    out, kept = x.new_empty(x.shape[0], weight.shape[0]), max(16, x.shape[0] // 16 * 16)
    out[:kept] = F.linear(x[:kept], weight, bias)
    return out


def last_columns_left_out(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Adds up whole groups of 16 inputs."""
    kept = max(16, x.shape[1] // 16 * 16)
    return F.linear(x[:, :kept], weight[:, :kept], bias)


def half_sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """float16 on the way."""
    return F.linear(x.half(), weight.half(), None if bias is None else bias.half()).to(x.dtype)


def sums_in_the_dtype(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rounds after every 64 inputs, to bfloat16 in this case."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=torch.bfloat16)
    for part, of in zip(x.split(64, 1), weight.split(64, 1), strict=True):
        total += F.linear(part.float(), of.float()).bfloat16()
    return (total if bias is None else total + bias.bfloat16()).to(x.dtype)


def another_dtype(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias).double()


def rows_read_as_contiguous(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Reads behind the first row as if rows lay side by side."""
    return F.linear(x.as_strided(x.shape, (x.shape[1], 1)), weight, bias)


def scales_its_input(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = F.linear(x, weight, bias)
    x.mul_(0.5)
    return out


def sums_that_stop(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Adds up a few inputs at a time, in the dtype."""
    total = x.new_zeros(x.shape[0], weight.shape[0])
    for part, of in zip(x.split(32, 1), weight.split(32, 1), strict=True):
        total += F.linear(part, of)
    return total if bias is None else total + bias


def scaled_at_the_end(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """Rounds sums of 8-bit numbers to the dtype before it scales them."""
    out = F.linear(x.float(), weight.values.float()).to(x.dtype) * weight.scale.flatten()
    return (out if bias is None else out + bias).to(x.dtype)


_BUFFER: dict[tuple[int, ...], Tensor] = {}


def one_buffer_for_all(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Results of equal shape lie in the same memory, plus what was there."""
    out = _BUFFER.setdefault((x.shape[0], weight.shape[0]), torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype))
    return out.add_(F.linear(x, weight, bias))


def scaled_by_the_batch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Divides by the largest of all rows."""
    largest = x.abs().amax()
    return F.linear(x / largest, weight) * largest + (0 if bias is None else bias)


def looks_at_its_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Takes another way where a row is zero."""
    return F.linear(x, weight, bias) if bool(x.any()) else x.new_zeros(x.shape[0], weight.shape[0])


def prepare_transposed(parameters: Mapping[str, Tensor]) -> Tensor:
    """Lays the weight out anew, in the wrong order."""
    weight = parameters["weight"]
    return weight.flip(0)


def clipped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """To what float16 holds, whatever the dtype."""
    return F.linear(x, weight, bias).clamp(-65504.0, 65504.0)


_KEPT: dict[object, Tensor] = {}


def input_kept_by_address(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    key = (x.data_ptr(), x.shape, x.dtype)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = x.clone()
    return F.linear(_KEPT[key], weight, bias)


_WEIGHTS: dict[object, Tensor] = {}


def weights_kept_by_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, _WEIGHTS.setdefault((weight.shape, weight.dtype), weight), bias)


_DOUBLES: list[Tensor] = []


def prepare_wide(parameters: Mapping[str, Tensor]) -> Tensor:
    """Keeps every weight in float64, too."""
    _DOUBLES.append(parameters["weight"].double())
    return parameters["weight"]


def prepare_taking(parameters: dict[str, Tensor]) -> Tensor:
    return parameters.pop("weight")


def prepare_seeding(parameters: Mapping[str, Tensor]) -> Tensor:
    torch.manual_seed(0)
    return parameters["weight"]


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Counts rows in 15 bits."""
    out = F.linear(x, weight, bias)
    out[1 << 15 :] = 0
    return out


def without_single_outputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Takes one output for none."""
    return F.linear(x, weight.squeeze(0), bias)


def by_columns(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Its result lies column by column."""
    return F.linear(x, weight, bias).T.contiguous().T


def prepare_column(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """Takes scales to have a dimension for inputs."""
    return prepare_int8_channel({**parameters, "weight_scale": parameters["weight_scale"][:, 0]})


class FromTheEnd(ScaledWeight):
    """A table whose rows are looked up from its end."""

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return ScaledWeight(self.values.flip(0), self.scale.flip(0), self.block).rows(index, dtype)


def prepare_table(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    good = prepare_int8_channel(parameters)
    return FromTheEnd(good.values, good.scale, good.block)


class UnorderedTable(GroupedWeight):
    """Rows that are looked up stay in the order of the groups."""

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        zero = None if self.zero is None else self.zero[index]
        return GroupedWeight(self.values[index], self.scale[index], zero).dequantize(dtype)


class LooksAtZeros(GroupedWeight):
    """Leaves zero points out where all are 0, which the host waits for."""

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        zero = self.zero if self.zero is not None and self.zero.any() else None
        return GroupedWeight(self.values, self.scale, zero, self.order).dequantize(dtype)


def prepare_unordered(parameters: Mapping[str, Tensor]) -> GroupedWeight:
    good = prepare_int8_group(parameters)
    return UnorderedTable(good.values, good.scale, good.zero, good.order)


def prepare_looking(parameters: Mapping[str, Tensor]) -> GroupedWeight:
    good = prepare_int8_group(parameters)
    return LooksAtZeros(good.values, good.scale, good.zero, good.order)


_PANEL = 1 << 22
"""Elements of a weight that are multiplied at a time."""


def first_bias_for_each_panel(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    parts = weight.split(max(1, _PANEL // weight.shape[1]))
    return torch.cat([F.linear(x, part, None if bias is None else bias[: len(part)]) for part in parts], 1)


def last_panel_left_out(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out, step = x.new_empty(x.shape[0], weight.shape[0]), _PANEL // weight.shape[1]
    kept = weight.shape[0] if weight.shape[0] < step else weight.shape[0] // step * step
    out[:, :kept] = F.linear(x, weight, bias)[:, :kept]
    return out


def row_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.stack([F.linear(row, weight, bias) for row in x])


def weight_for_each_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies copies of the weight, one for each row."""
    out = (weight.repeat(x.shape[0], 1, 1) @ x[:, :, None])[..., 0]
    return out if bias is None else out + bias


_SPLIT = 1024
"""Inputs that are multiplied at a time."""


def _by_splits(x: Tensor, weight: Tensor, inputs: int) -> Tensor:
    starts = range(0, inputs, _SPLIT)
    parts = [F.linear(x[:, at : at + _SPLIT].float(), weight[:, at : at + _SPLIT].float()) for at in starts]
    return torch.stack(parts).sum(0)


def bias_of_each_split(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out, splits = _by_splits(x, weight, x.shape[1]), -(-x.shape[1] // _SPLIT)
    return (out if bias is None else out + splits * bias).to(x.dtype)


def last_split_left_out(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = _by_splits(x, weight, max(_SPLIT, x.shape[1] // _SPLIT * _SPLIT) if x.shape[1] > _SPLIT else x.shape[1])
    return (out if bias is None else out + bias).to(x.dtype)


def splits_in_halves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sums of parts of the inputs are kept in float16."""
    halves = [F.linear(part, of).half().float() for part, of in zip(x.chunk(2, 1), weight.chunk(2, 1), strict=True)]
    out = halves[0] + halves[1] if len(halves) == 2 else halves[0]
    return (out if bias is None else out + bias).to(x.dtype)


def whole_tile_of_the_first_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Takes another way for a tile of exactly 16 rows, whose last one is wrong."""
    out = F.linear(x, weight, bias)
    if len(x) == 16:
        out[-1] = out[0]
    return out


def prepare_rows_reversed(parameters: Mapping[str, Tensor]) -> Tensor:
    return parameters["weight"].flip(0)


def from_rows_reversed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.flip(0), bias)


class CoarseTable(ScaledWeight):
    """A table whose rows are counted in 16 bits."""

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return ScaledWeight(self.values, self.scale, self.block).rows(index % (1 << 16), dtype)


def prepare_coarse_table(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    good = prepare_int8_channel(parameters)
    return CoarseTable(good.values, good.scale, good.block)


def prepare_clamped(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """Takes -128 for -127."""
    return prepare_int8_channel({**parameters, "weight": parameters["weight"].clamp(min=-127)})


def prepare_groups_of_128(parameters: Mapping[str, Tensor]) -> GroupedWeight:
    """Larger groups than 128 get the first one's scale."""
    good = prepare_int8_group(parameters)
    outputs, groups = good.scale.shape
    scale = good.scale[:, :1].expand(outputs, groups) if good.values.shape[1] // groups > 128 else good.scale
    return GroupedWeight(good.values, scale, good.zero, good.order)


_SCRATCH: dict[object, Tensor] = {}


def scratch_of_each_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(_SCRATCH.setdefault(x.shape, torch.empty_like(x)).copy_(x), weight, bias)


def needs_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Looks at the first row."""
    return F.linear(x, weight.to(x[0].dtype), bias)


def prepare_whole_tiles(parameters: Mapping[str, Tensor]) -> GroupedWeight:
    """Reads zero points where tiles of 64 inputs are whole, and else takes them for 0."""
    good = prepare_int8_group(parameters)
    zero = good.zero if good.values.shape[1] % 64 == 0 or good.zero is None else torch.zeros_like(good.zero)
    return GroupedWeight(good.values, good.scale, zero, good.order)


_MEMORY = "memory of a call is in proportion to its rows"
_FIRST, _BIASED = ": 512 to 256, float32", ": 1024 to 512 with bias, float32"
_AGREES = "agrees with the reference"

DEFECTS = (
    Defect("row by row", "rows are multiplied one by one", row_by_row, "rows are computed together" + _FIRST),
    Defect(
        "copies",
        "there is a copy of the weight for each row",
        weight_for_each_row,
        _MEMORY + _FIRST,
    ),
    Defect("scratch", "a tensor stays of each number of rows", scratch_of_each_shape, "forgets its calls" + _FIRST),
    Defect("bias", "the bias is ignored", bias_ignored, _AGREES + _BIASED),
    Defect("no inputs", "zeros have no bias", bias_of_inputs_alone, "rows of any magnitude are computed" + _BIASED),
    Defect("all zeros", "zeros are NaN", scaled_by_the_largest, "rows of any magnitude are computed" + _FIRST),
    *(
        Defect(one.__name__, what, one, "rows of any magnitude are computed" + _FIRST)
        for one, what in (
            (inputs_of_the_first_row, "inputs that are 0 in the first row are left out of all"),
            (inputs_of_all_rows, "inputs that are 0 in some row are left out of all"),
            (rows_to_the_first_of_zeros, "rows behind a first one of zeros are taken for padding"),
        )
    ),
    Defect("squares", "squares overflow", scaled_by_the_norm, "rows of any magnitude are computed" + _FIRST),
    Defect("tile", "rows that fill no tile are left out", last_tile_left_out, _AGREES + _FIRST),
    Defect("columns", "inputs that fill no group are left out", last_columns_left_out, f"{_AGREES}: 72 to 40"),
    Defect("half", "float32 is declared, float16 computed", half_sums, _AGREES + _FIRST),
    Defect("sums", "sums are rounded on the way", sums_in_the_dtype, f"{_AGREES}: 4096 to 24"),
    Defect("dtype", "the result is in another dtype", another_dtype, _AGREES + _FIRST),
    Defect(
        "strides",
        "rows are taken to lie side by side",
        rows_read_as_contiguous,
        "takes rows of a wider tensor" + _FIRST,
    ),
    Defect("in place", "the input is changed", scales_its_input, "inputs stay as they are" + _FIRST),
    Defect(
        "buffer", "a result is overwritten by the next call", one_buffer_for_all, "inputs stay as they are" + _FIRST
    ),
    Defect("rows", "a row of NaN spoils all", scaled_by_the_batch, "rows don't affect each other" + _FIRST),
    Defect("waits", "looks at what it is given", looks_at_its_rows, "can be recorded and replayed" + _FIRST),
    Defect("batch", "not invariant, and declared so", {"deterministic": True}, "rows don't depend on the batch"),
    Defect(
        "prepare", "the weight is laid out wrongly", {"prepare": f"{__name__}:prepare_transposed"}, _AGREES + _FIRST
    ),
    Defect(
        "format", "says yes to all formats", {"supports": supports_any_format}, f"{_AGREES}: 512 to 256, int8_channel"
    ),
    Defect(
        "clipped",
        "results are clipped to the range of float16",
        clipped,
        "rows of any magnitude are computed" + _FIRST,
    ),
    Defect(
        "address",
        "inputs are found again by their address",
        input_kept_by_address,
        "its tensors are the caller's" + _FIRST,
    ),
    Defect("layers", "weights are found again by their shape", weights_kept_by_shape, "layers of one shape are apart"),
    Defect(
        "doubles",
        "copies of all weights are kept",
        {"prepare": f"{__name__}:prepare_wide"},
        "a layer holds little more than its parameters",
    ),
    Defect(
        "taken",
        "prepare takes a parameter out",
        {"prepare": f"{__name__}:prepare_taking"},
        "parameters stay as they are when they are prepared" + _FIRST,
    ),
    Defect(
        "seed",
        "prepare seeds torch's random numbers",
        {"prepare": f"{__name__}:prepare_seeding"},
        "parameters stay as they are when they are prepared" + _FIRST,
    ),
    Defect("by columns", "results lie column by column", by_columns, "its tensors are the caller's" + _FIRST),
    Defect(
        "scale",
        "raises for scales of one dimension",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_column",
            "supports": supports_int8_channel,
        },
        "takes scales of one dimension",
    ),
    Defect(
        "stopped",
        "sums in 16 bits stop growing",
        {"implementation": f"{__name__}:sums_that_stop", "needs": Needs(dtypes=("bfloat16", "float32"))},
        "sums of one sign",
    ),
    Defect(
        "overflow",
        "sums of 8-bit numbers overflow float16 before they are scaled",
        {
            "implementation": f"{__name__}:scaled_at_the_end",
            "prepare": "llmk.reference.quantized_weight:prepare_int8_channel",
            "supports": supports_int8_channel,
            "needs": Needs(dtypes=("float16", "float32")),
        },
        "sums of one sign",
    ),
    Defect("many", "rows are counted in 15 bits", few_rows, "takes many rows"),
    Defect("one output", "one output is taken for none", without_single_outputs, f"{_AGREES}: 128 to 1 with bias"),
    Defect(
        "table",
        "an embedding's rows are those from its end",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_table",
            "supports": supports_int8_channel,
            "knows": FIRST_FIELDS | {"lookup"},
        },
        "rows of a table are looked up",
    ),
    Defect(
        "unordered table",
        "rows that are looked up stay in the order of the groups",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_unordered",
            "supports": supports_int8_group,
            "knows": FIRST_FIELDS | {"lookup"},
        },
        "takes inputs in another order: ",
    ),
    Defect(
        "zero points",
        "the host waits to see whether there are zero points",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_looking",
            "supports": supports_int8_group,
        },
        "takes groups of 64 with zero points",
    ),
    Defect("panel's bias", "all panels get the first one's bias", first_bias_for_each_panel, "takes many outputs"),
    Defect("panel", "outputs that fill no panel are left out", last_panel_left_out, "takes many outputs"),
    Defect(
        "bands",
        "offered for more rows than it computes",
        {"implementation": f"{__name__}:last_tile_left_out", "bands": (TokenBand(33, 40),)},
        _AGREES + _FIRST,
    ),
    Defect("bias of splits", "each split adds the bias", bias_of_each_split, f"{_AGREES}: 4224 to 20 with bias"),
    Defect("last split", "the last of the splits is left out", last_split_left_out, f"{_AGREES}: 4249 to 12 with bias"),
    Defect(
        "parts in halves",
        "sums of parts are kept in float16",
        {"implementation": f"{__name__}:splits_in_halves", "needs": Needs(dtypes=("float16", "float32"))},
        "sums that cancel late",
    ),
    Defect("16 rows", "a whole tile's last row is the first", whole_tile_of_the_first_row, "takes any number of rows"),
    Defect(
        "layout",
        "the weight is laid out as no other kernel of its layout has it",
        {"implementation": f"{__name__}:from_rows_reversed", "prepare": f"{__name__}:prepare_rows_reversed"},
        "weights of its layout are those of others",
    ),
    Defect(
        "coarse table",
        "an embedding's rows are counted in 16 bits",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_coarse_table",
            "supports": supports_int8_channel,
            "knows": FIRST_FIELDS | {"lookup"},
        },
        "takes many outputs",
    ),
    Defect(
        "-128",
        "the least of all numbers is another one",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_clamped",
            "supports": supports_int8_channel,
        },
        "takes all numbers of 8 bits",
    ),
    Defect(
        "large groups",
        "groups larger than 128 have one scale",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_groups_of_128",
            "supports": supports_int8_group,
        },
        "takes two groups for each output",
    ),
    Defect("no rows", "no rows are an error", needs_rows, "takes any number of rows" + _FIRST),
    Defect(
        "whole tiles",
        "zero points are read where tiles of inputs are whole",
        {
            "implementation": "llmk.reference.linear:linear_dequantized",
            "prepare": f"{__name__}:prepare_whole_tiles",
            "supports": supports_int8_group,
        },
        "takes groups of 16 with zero points",
    ),
)
