"""The experts of any transformers decoder, as far as the names and shapes of a checkpoint's tensors say. Imports no
torch. When the model is loaded, they are compared with its modules."""

from __future__ import annotations

import re
from typing import Any

from llmk.api import MoEFacts
from llmk.nn.tensor_file import read_headers, weight_files
from llmk.tree import Config, Experts

_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight$")
_STACKED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)$")
_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""The names of an expert's projections: gate, up, down."""
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_NUMBER = re.compile(r"\.(\d+)\.")
_Shapes = dict[tuple[int, str], tuple[int, ...]]


def expert_layers(config: Config, hidden_size: int) -> tuple[Experts, ...]:
    """The experts of each layer that has any, if all have a gate, and none has biases. Empty for a checkpoint without
    weights, and where the config does not say how many experts a token has, or has another activation."""
    checkpoint = config.checkpoint
    top_k = next((config.size(key) for key in _TOP_K if config.values.get(key) is not None), 0)
    stated = next((config.values[key] for key in ("hidden_act", "hidden_activation") if config.values.get(key)), "silu")
    activation = _ACTIVATIONS.get(str(stated), "")
    if not (top_k and activation and checkpoint.weight_files) or checkpoint.reader is not None:
        return ()
    found: dict[str, _Shapes] = {}
    for tensor in read_headers(weight_files(checkpoint)):
        if match := _ONE.match(tensor.name):
            found.setdefault(match[1], {})[int(match[2]), match[3]] = tensor.shape
        elif match := _STACKED.match(tensor.name):
            found.setdefault(match[1], {})[-1, match[2]] = tensor.shape
    made = []
    for at, shapes in found.items():
        names, count, inner = _sizes(shapes, hidden_size)
        if count >= top_k:
            own: dict[str, Any] = {"hidden_size": hidden_size, "intermediate_size": inner, "activation": activation}
            facts = MoEFacts(site="moe", num_experts=count, top_k=top_k, **own)
            made.append(Experts(at=at, facts=facts, names=names))
    return tuple(made)


def layer_number(name: str) -> int:
    """The number of the layer that a module with such a name is in; -1: none."""
    match = _NUMBER.search(f".{name}.")
    return int(match[1]) if match else -1


def _sizes(shapes: _Shapes, hidden_size: int) -> tuple[tuple[str, ...], int, int]:
    """The names of projections, the number of experts, and their intermediate size; no experts where they are stored in
    a way that is not known."""
    stacked = shapes.get((-1, "down_proj"), ())
    if len(stacked) == 3 and stacked[1] == hidden_size:
        count, _, inner = stacked
        right = shapes == {(-1, "gate_up_proj"): (count, 2 * inner, hidden_size), (-1, "down_proj"): stacked}
        return _NAMES[0], count if right else 0, inner
    for names in _NAMES:
        inner = (shapes.get((0, names[0])) or (0,))[0]
        of_one = dict(zip(names, ((inner, hidden_size), (inner, hidden_size), (hidden_size, inner)), strict=True))
        count = len(shapes) // len(names)
        if inner and shapes == {(e, name): shape for e in range(count) for name, shape in of_one.items()}:
            return names, count, inner
    return _NAMES[0], 0, 0
