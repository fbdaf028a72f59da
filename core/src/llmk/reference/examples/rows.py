"""Ops that compute each row by itself: norms, activations, rotary embedding, token embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.reference.op_examples import Draw, Facts, OpExamples
from llmk.reference.rope.rotation import axes_of_pairs

EPS = (1e-6, 1e-5, 1e-2)
"""Those of models, and one that shows."""

CAPS = (30.0, 50.0, 15.0)
"""Soft caps of models."""
_SIZES = tuple({"size": size} for size in (128, 72, 4096, 33, 16_392))
_INNER = tuple({"intermediate_size": size} for size in (128, 40, 33, 1536, 14_344))
PARAMETERS: Facts = {"activation_alpha": 1.702, "activation_limit": 1.5, "up_offset": 1.0}
"""Facts of a gated activation with parameters."""
_GATED = (
    *_INNER,
    {"intermediate_size": 72, **PARAMETERS},
    {"intermediate_size": 72, "activation_limit": 0.7},
    {"intermediate_size": 40, "activation_alpha": 0.5, "up_offset": 0.25},
)
_ACTIVATED = tuple(
    {"intermediate_size": 33, "activation": name} for name in ("relu2", "gelu", "gelu_tanh", "silu", "relu")
)
_HEADS = (
    {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "rotary_dim": 64, "qk_norm": True},
    {"num_heads": 3, "num_kv_heads": 1, "head_dim": 40, "rotary_dim": 16, "qk_norm": True},
    {"num_heads": 3, "num_kv_heads": 1, "head_dim": 40, "rotary_dim": 24, "rotary_sections": (2, 7, 3)},
    {"num_heads": 3, "num_kv_heads": 1, "head_dim": 40, "rotary_dim": 24, "rotary_neighbours": True},
    {
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 40,
        "rotary_dim": 24,
        "rotary_sections": (2, 7, 3),
        "rotary_neighbours": True,
    },
)
_LATENT_HEADS = (
    {"num_heads": 8, "num_kv_heads": 2, "qk_rope_head_dim": 64},
    {"num_heads": 3, "head_dim": 40, "qk_rope_head_dim": 16},
    {"num_heads": 3, "head_dim": 40, "qk_rope_head_dim": 16, "rotary_sections": (5, 3)},
)
_TABLES = (
    {"vocab_size": 1000, "hidden_size": 128},
    {"vocab_size": 33, "hidden_size": 72},
    {"vocab_size": 66_001, "hidden_size": 8},
)
_LATENT = {"num_heads": 4, "kv_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24}
_GATES = ({"size": 128, "gate_size": 128}, {"size": 72, "gate_size": 1})
_SPACE = ({"num_heads": 6, "head_dim": 8},)


def eps(draw: Draw) -> float:
    """A norm's eps."""
    return EPS[int(draw.whole(0, len(EPS), 1))]


def _norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size = facts["size"]
    return draw.floats(rows, size, scale=3.0), draw.floats(size), eps(draw)


def _add_norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, weight, eps = _norm(draw, facts, rows)
    return x, draw.floats(*x.shape), weight, eps


def _layer_norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Rows far from zero, as some channels of real models are."""
    x, weight, eps = _norm(draw, facts, rows)
    return x + 2.0, weight, draw.floats(*weight.shape), eps


def _add_layer_norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, *others = _layer_norm(draw, facts, rows)
    return x, draw.floats(*x.shape), *others


def sum_keywords(draw: Draw, facts: Facts) -> Facts:
    """The factor in a residual sum, and what is added to a norm's weight."""
    return {name: facts[name] for name in ("residual_multiplier", "norm_offset") if name in facts}


def _sandwich(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, residual, weight, eps = _add_norm(draw, facts, rows)
    return x, residual, draw.floats(*weight.shape), weight, eps


def _wide_residual(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, _, weight, eps = _add_norm(draw, facts, rows)
    return x, draw.reals(*x.shape), weight, eps


def _gated_norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size = facts["num_heads"] * facts["head_dim"]
    return draw.floats(rows, size), draw.floats(rows, size, scale=2.0), draw.floats(size), eps(draw)


def _gated(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return (draw.floats(rows, 2 * facts["intermediate_size"], scale=2.0),)


def _activate(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["intermediate_size"], scale=2.0), facts["activation"]


def _xielu(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Parameters as they are at the start of training, but apart."""
    values = (0.4, -0.9, 0.5, -0.2)
    numbers = [torch.tensor([value], device=draw.random.device) for value in values]
    return draw.floats(rows, facts["intermediate_size"], scale=2.0), *numbers


def _sigmoid_gate(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["size"]), draw.floats(rows, facts["gate_size"], scale=2.0)


def _softcap(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["size"], scale=40.0), CAPS[int(draw.whole(0, len(CAPS), 1))]


def _softcap_of_logits(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.reals(rows, facts["size"]), 30.0


def _rope(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    q, k = (draw.floats(rows, facts[heads], facts["head_dim"]) for heads in ("num_heads", "num_kv_heads"))
    return q, k, *rotation(draw, facts["rotary_dim"], rows, facts)


def _rope_interleaved(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """In latent attention all heads share a key, and what is rotated is a tensor of its own."""
    rotary_dim = facts["qk_rope_head_dim"]
    heads, width = (facts["num_heads"], facts.get("num_kv_heads", 1)), facts.get("head_dim", rotary_dim)
    return *(draw.floats(rows, count, width) for count in heads), *rotation(draw, rotary_dim, rows, facts)


def gated_keywords(draw: Draw, facts: Facts) -> Facts:
    """The parameters of a gated activation."""
    return {name: facts[name] for name in PARAMETERS if name in facts}


def rotary_keywords(draw: Draw, facts: Facts) -> Facts:
    """The axis of each rotated pair, where positions have several axes, and whether neighbours are a pair."""
    sections, neighbours = facts.get("rotary_sections"), facts.get("rotary_neighbours")
    axes: Facts = {"axes": axes_of_pairs(sections).to(draw.random.device)} if sections else {}
    return {**axes, "neighbours": True} if neighbours else axes


def rotation(draw: Draw, rotary_dim: int, rows: int, facts: Facts) -> tuple[Tensor, Tensor]:
    """Positions of tokens, and cosines and sines, float32 ``[positions, rotary_dim]``. Where positions have several
    axes, each axis has others, and as in a step, the positions of an axis lie side by side."""
    positions = draw.positions(rows)
    if "rotary_sections" in facts:
        apart = torch.arange(len(facts["rotary_sections"]), device=positions.device)
        positions = ((positions + 3 * apart[:, None]) % draw.longest).T
    frequencies = 100.0 ** -(torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    turned = torch.outer(torch.arange(draw.longest, dtype=torch.float32), frequencies)
    return positions, torch.cat((turned.cos(), turned.sin()), dim=-1).to(positions.device)


def _embedding(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    vocab = facts["vocab_size"]
    ids = draw.whole(0, vocab, rows)
    ids[0] = vocab - 1
    return ids, draw.floats(vocab, facts["hidden_size"])


def _scaled_embedding(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return *_embedding(draw, facts, rows), 11.5


def _per_head(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    heads, inner, outer = facts["num_heads"], facts["qk_nope_head_dim"], facts["kv_lora_rank"]
    return draw.floats(rows, heads, inner), draw.floats(heads, inner, outer, scale=inner**-0.5)


_NORMED: tuple[Facts, ...] = (*_SIZES, {"size": 72, "norm_offset": 1.0}, {"size": 40, "norm_offset": 0.25})
_EACH: Any = {"by_row": ("x",), "leading": ("x",)}
_BOTH: Any = {"by_row": ("x", "residual"), "leading": ("x", "residual")}
_SUMS: Any = {**_BOTH, "keywords": sum_keywords}
RMS_NORM = OpExamples(_NORMED, _norm, **_EACH, wide=("x",), keywords=sum_keywords)
LAYER_NORM = OpExamples(_NORMED, _layer_norm, **_EACH, wide=("x",), optional=("weight", "bias"), keywords=sum_keywords)
ADD_LAYER_NORM = OpExamples(
    (*_NORMED, {"size": 72, "residual_multiplier": 0.22}), _add_layer_norm, optional=("weight", "bias"), **_SUMS
)
ADD_RMS_NORM = OpExamples((*_NORMED, {"size": 72, "residual_multiplier": 0.22}), _add_norm, **_SUMS)
RMS_NORM_ADD = OpExamples(_NORMED, _add_norm, **_SUMS)
SANDWICH_NORM = OpExamples(_NORMED, _sandwich, **_SUMS)
ADD_RMS_NORM_FP32_RESIDUAL = OpExamples(_SIZES, _wide_residual, **_BOTH)
GATED_RMS_NORM = OpExamples(
    (*_SPACE, {**_SPACE[0], "gate_activation": "sigmoid"}),
    _gated_norm,
    by_row=("x", "gate"),
    wide=("gate",),
    options={"groups": 2},
    keywords=lambda draw, facts: {name: facts[name] for name in ("gate_activation",) if name in facts},
)
GATED = OpExamples(_GATED, _gated, **_EACH, keywords=gated_keywords)
ACTIVATE = OpExamples(_ACTIVATED, _activate, **_EACH)
XIELU = OpExamples(_INNER, _xielu, **_EACH)
SIGMOID_GATE = OpExamples(_GATES, _sigmoid_gate, by_row=("x", "gate"))
SOFTCAP = OpExamples(_SIZES, _softcap, benchmark=_softcap_of_logits, **_EACH)
_ROPE: Any = {"by_row": ("q", "k", "positions"), "wide": ("q", "k"), "keywords": rotary_keywords}
ROPE = OpExamples(_HEADS, _rope, **_ROPE)
ROPE_INTERLEAVED = OpExamples(_LATENT_HEADS, _rope_interleaved, **_ROPE)
EMBEDDING = OpExamples(_TABLES, _embedding, by_row=("ids",))
SCALED_EMBEDDING = OpExamples(_TABLES, _scaled_embedding, by_row=("ids",))
PER_HEAD_MATMUL = OpExamples((_LATENT,), _per_head, by_row=("x",), wide=("x",))
