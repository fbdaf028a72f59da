"""A file's tensors, under the names and in the layout that the families' checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmk.api import CheckpointError, StoredTensor
from llmk_gguf.architectures import OUTER, Architecture
from llmk_gguf.header import StoredBlocks
from llmk_gguf.values import PLAIN, Dequantize, Reorder, can_dequantize

_NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_GATE = "ffn_gate_inp_shexp.weight"


@dataclass(frozen=True, slots=True)
class Named:
    """A stored tensor, its name in the family's checkpoints, and the size of a head if its rows are in another order
    there; else 0."""

    name: str
    stored: StoredBlocks
    head_dim: int = 0

    @property
    def module(self) -> str:
        """The name of the module that it belongs to."""
        return self.name.rpartition(".")[0]


def named_tensors(tensors: Sequence[StoredBlocks], architecture: Architecture, head_dim: int) -> Iterator[Named]:
    """All tensors with weights, each with its name; one that has none keeps its own. A stack of experts becomes a
    tensor for each."""
    for tensor in tensors:
        if tensor.name in _NOT_WEIGHTS:
            continue
        if tensor.name in OUTER:
            yield Named(OUTER[tensor.name], tensor)
            continue
        _, layer, rest = [*tensor.name.split(".", 2), "", ""][:3]
        stem, _, kind = rest.rpartition(".")
        at = f"model.layers.{layer}"
        if stem in architecture.experts and len(tensor.shape) == 3:
            module = f"{at}.{architecture.expert_prefix}"
            for expert, one in enumerate(_unstacked(tensor)):
                yield Named(f"{module}.{expert}.{architecture.experts[stem]}.{kind}", one)
        elif tensor.name.startswith("blk.") and stem in architecture.layer:
            permuted = architecture.permuted and stem in ("attn_q", "attn_k")
            one = _as_matrix(tensor) if rest == _GATE else tensor
            yield Named(f"{at}.{architecture.layer[stem]}.{kind}", one, head_dim if permuted else 0)
        else:
            yield Named(tensor.name, tensor)


def plain_tensor(named: Named, norm_offset: float) -> StoredTensor:
    """The tensor, dequantized while it is read where it is quantized. Raises CheckpointError for a type that can't
    be."""
    stored = named.stored
    shift = -norm_offset if named.name.endswith("norm.weight") else 0.0
    place = (named.name, stored.file)
    if stored.kind not in PLAIN and not can_dequantize(stored.kind):
        raise CheckpointError(
            f"tensor {stored.name!r} in {stored.file} has the type {stored.kind}, which is not served",
            hint="use a file of another type, such as Q8_0 or Q4_K_M",
        )
    if stored.kind not in PLAIN or shift:
        decode = Dequantize(stored.kind, shift, named.head_dim)
        return StoredTensor(*place, "F32", stored.shape, stored.start, stored.stop, decode)
    reorder = Reorder(PLAIN[stored.kind], named.head_dim) if named.head_dim else None
    return StoredTensor(*place, stored.kind, stored.shape, stored.start, stored.stop, reorder)


def _unstacked(stack: StoredBlocks) -> Iterator[StoredBlocks]:
    count, *shape = stack.shape
    size = (stack.stop - stack.start) // count
    for index in range(count):
        start = stack.start + index * size
        yield StoredBlocks(stack.name, stack.file, stack.kind, tuple(shape), start, start + size)


def _as_matrix(tensor: StoredBlocks) -> StoredBlocks:
    """A row, which files may store without its first dimension, as a matrix."""
    shape = (1, *tensor.shape) if len(tensor.shape) == 1 else tensor.shape
    return StoredBlocks(tensor.name, tensor.file, tensor.kind, shape, tensor.start, tensor.stop)
