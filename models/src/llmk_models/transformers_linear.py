"""The linear layers of any transformers decoder, as far as the names and shapes of a checkpoint's tensors say. Imports
no torch. When the model is loaded, they are compared with its modules."""

from __future__ import annotations

import re

from llmk.nn.tensor_file import read_headers, weight_files
from llmk.tree import Config, Heads, Linear

_IN_A_LAYER = re.compile(r"\.\d+\.")
_OTHERS = re.compile(r"norm|embed|conv|expert|router|\.gate$|(^|\.)wpe$|\.c_\w+$")
"""Modules that are no linear layers, that choose experts, or that store their weight transposed (GPT-2)."""
_COLUMN, _ROW = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
"""Layers that tensor-parallel ranks shard by output features, and by input features."""
_ATTENTION = {"q_proj", "k_proj", "v_proj"}
_OF_HEADS = re.compile(r"\.(q|k)_?(layer)?norm$")
_NIBBLES = 8
"""4-bit weights in one stored number."""


def linear_layers(config: Config, heads: Heads, *, cut: bool) -> tuple[Linear, ...]:
    """The layers whose weight ``[out, in]`` is stored by itself, plain, in 8 bits, or packed in 4. With ``cut``,
    tensor-parallel ranks shard them. Empty for a checkpoint without weights."""
    checkpoint = config.checkpoint
    if not checkpoint.weight_files or checkpoint.reader is not None:
        return ()
    stored = {tensor.name: tensor.shape for tensor in read_headers(weight_files(checkpoint))}
    made = []
    for name, shape in stored.items():
        module, _, kind = name.rpartition(".")
        wanted = kind in ("weight", "weight_packed") and len(shape) == 2 and _IN_A_LAYER.search(f".{module}.")
        if wanted and not _OTHERS.search(module):
            rows, size = shape[0], shape[1] * (_NIBBLES if kind == "weight_packed" else 1)
            made.append(_linear(module, size, rows, heads, bias=f"{module}.bias" in stored, cut=cut))
    return tuple(made)


def _linear(module: str, size: int, rows: int, heads: Heads, *, bias: bool, cut: bool) -> Linear:
    role = module.rpartition(".")[2]
    if cut and role in _ROW:
        return Linear.row(module, role, size, rows, bias=bias)
    if cut and role in _COLUMN:
        units = {"q_proj": heads.count, "k_proj": heads.kv, "v_proj": heads.kv}.get(role, rows)
        return Linear.column(module, role, size, rows, units, bias=bias)
    return Linear.whole(module, role, size, rows, bias=bias)


def can_cut(config: Config, layers: tuple[Linear, ...], heads: Heads) -> bool:
    """Whether ranks know how to shard all that a decoder's layers consist of: linear layers of the usual names, and
    norms of hidden states, or of each head by itself."""
    roles = {layer.role for layer in layers}
    if not (roles >= _ATTENTION and roles <= {*_COLUMN, *_ROW}):
        return False
    known = {layer.at for layer in layers}
    for tensor in read_headers(weight_files(config.checkpoint)):
        module, _, _ = tensor.name.rpartition(".")
        if module in known or not _IN_A_LAYER.search(f".{tensor.name}"):
            continue
        if "norm" not in module or (_OF_HEADS.search(module) and tensor.shape != (heads.dim,)):
            return False
    return True
