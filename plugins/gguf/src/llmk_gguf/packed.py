"""Presents tensors of blocks as the stored parameters of a weight format, so that they stay packed in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llmk.api import StoredTensor
from llmk_gguf.blocks import INT4, INT8, TYPES, Scales, Type
from llmk_gguf.tensors import Named
from llmk_gguf.values import halves

if TYPE_CHECKING:
    from torch import Tensor

Part = Literal["numbers", "scale", "zero"]

HEAD, _TABLE = "lm_head", "model.embed_tokens"


@dataclass(frozen=True, slots=True)
class Format:
    """How the projections of a GEMM are kept: the weight format, the inputs of a group, and whether there are zero
    points."""

    name: str
    group: int
    has_zero: bool


@dataclass(frozen=True, slots=True)
class Unpack:
    """Makes one parameter of a format of rows of blocks; rows of heads are ordered as in
    :class:`llmk_gguf.values.Dequantize`."""

    kind: str
    part: Part
    format: Format
    head_dim: int = 0

    @property
    def multiple(self) -> int:
        """Rows that belong together."""
        return self.head_dim or 1

    def __call__(self, stored: Tensor) -> Tensor:
        """int8 ``[rows, inputs]`` or packed uint8 ``[rows, inputs / 2]``; float32 ``[rows, groups]`` of scales or zero
        points."""
        rows, kind = halves(stored, self.head_dim) if self.head_dim else stored, TYPES[self.kind]
        blocks = rows.unflatten(1, (-1, kind.block_bytes))
        if self.part == "numbers":
            return self._numbers(blocks, kind)
        found = kind.scales(blocks)
        values = _scale(found) if self.part == "scale" else _zero(found, 8 if self.format.name == INT4 else 0)
        repeats = kind.group // self.format.group
        return values if repeats == 1 else values.repeat_interleave(repeats, 1)

    def _numbers(self, blocks: Tensor, kind: Type) -> Tensor:
        unpack = kind.nibbles if self.format.name == INT4 and kind.nibbles else kind.numbers
        numbers, flat = unpack(blocks), _flat(kind.scales(blocks))
        if flat is not None and bool(flat.any()):
            numbers.unflatten(1, (flat.shape[1], -1)).masked_fill_(flat[:, :, None], 0)
        return numbers


def _flat(found: Scales) -> Tensor | None:
    """Groups whose numbers count for nothing. Each has its minimum alone: a scale of that size, and zero at 1."""
    return None if found.minimum is None else (found.scale == 0) & (found.minimum != 0)


def _scale(found: Scales) -> Tensor:
    import torch

    flat = _flat(found)
    return found.scale if flat is None or found.minimum is None else torch.where(flat, found.minimum, found.scale)


def _zero(found: Scales, shift: int) -> Tensor:
    import torch

    flat = _flat(found)
    if flat is None or found.minimum is None:
        return torch.full_like(found.scale, shift)
    return torch.where(flat, 1.0, found.minimum / torch.where(found.scale == 0, 1.0, found.scale))


def formats_of(named: Sequence[Named]) -> dict[str, Format]:
    """The format of each module whose weight stays packed. Modules that one GEMM computes, and all experts of a layer,
    have one: the widest that one of them needs; none if one of them has a type that is not kept packed. Without a head,
    the embedding's table is one, and the format of both; else rows are looked up in it alone, and it is plain."""
    together: dict[str, list[Named]] = {}
    plain = {_TABLE} if any(one.module == HEAD for one in named) else set[str]()
    for one in named:
        if one.name.endswith(".weight") and one.module not in plain and len(one.stored.shape) == 2:
            together.setdefault(_gemm(one.module), []).append(one)
    found: dict[str, Format] = {}
    for modules in together.values():
        kinds = {one.stored.kind for one in modules}
        if kinds <= TYPES.keys():
            found |= {one.module: _widest(kinds) for one in modules}
    if HEAD not in found and _TABLE in found:
        found[HEAD] = found[_TABLE]
    return found


def packed_tensors(named: Named, format: Format) -> Iterator[StoredTensor]:
    """The parameters of a module that stays packed."""
    stored, (rows, inputs) = named.stored, named.stored.shape
    groups = (rows, inputs // format.group)
    is_int4 = format.name == INT4
    parts: list[tuple[str, Part, str, tuple[int, ...]]] = [
        ("weight_packed", "numbers", "U8", (rows, inputs // 2))
        if is_int4
        else ("weight", "numbers", "I8", (rows, inputs)),
        ("weight_scale", "scale", "F32", groups),
    ]
    if format.has_zero:
        parts.append(("weight_zero_point", "zero", "F32", groups))
    for name, part, dtype, shape in parts:
        decode = Unpack(stored.kind, part, format, named.head_dim)
        yield StoredTensor(f"{named.module}.{name}", stored.file, dtype, shape, stored.start, stored.stop, decode)


def _widest(kinds: set[str]) -> Format:
    types = [TYPES[kind] for kind in kinds]
    name = INT4 if max(kind.bits for kind in types) == 4 else INT8
    return Format(name, min(kind.group for kind in types), not kinds.isdisjoint(("Q4_K", "Q5_K")))


def _gemm(module: str) -> str:
    """A name for the GEMM that computes a module."""
    before, experts, _ = module.partition(".experts.")
    if experts:
        return before + experts
    parent, _, name = module.rpartition(".")
    start = name.removesuffix("_proj")
    together = "qkv" if start in ("q", "k", "v") else "gate_up" if start in ("gate", "up") else name
    return f"{parent}.{together}"
