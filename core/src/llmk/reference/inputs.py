"""Arguments of the core's own ops, by their names, made from what a site's facts say of sizes; and what of them an op
changes. For whoever measures, tries or compares kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.reference.op_examples import Draw, Facts, OpExamples

EPS = 1e-6
_TOP = 20
"""Likeliest tokens whose log-probabilities are asked for."""

WEIGHTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("embedding", "scaled_embedding", "gate_up_silu", "gate_up_gelu_tanh"), (1,)),
    **dict.fromkeys(("add_rms_norm_linear", "add_rms_norm_router", "add_rms_norm_gate_up_silu"), (4,)),
    "latent_attention": (4, 5),
    "linear": (1,),
    "moe": (2,),
}
"""Positions of weights among the arguments of an op or a kind: too large to copy for each call, and never changed."""
CHANGED: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("update_rows", "append_tokens", "apply_penalties", "apply_bias", "allow_tokens"), (0,)),
    "build_step": (1,),
}
"""Positions of arguments that an op changes in place. All ops over attention change their cache besides."""

Make = Callable[[Draw, Facts, int], tuple[Any, ...]]
"""The arguments of an op at a site with these facts, for so many tokens (or rows)."""

_SIZES = tuple({"size": size} for size in (128, 72, 4096, 33))
_INNER = tuple({"intermediate_size": size} for size in (128, 40, 33, 1536))
_HEADS = (
    {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "rotary_dim": 64, "qk_norm": True},
    {"num_heads": 3, "num_kv_heads": 1, "head_dim": 40, "rotary_dim": 16, "qk_norm": True},
)
_TABLES = ({"vocab_size": 1000, "hidden_size": 128}, {"vocab_size": 33, "hidden_size": 72})
_LATENT = {"num_heads": 4, "kv_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24}
_GATES = ({"size": 128, "gate_size": 128}, {"size": 72, "gate_size": 1})
_POSITIONS = 500


def _norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size = facts["size"]
    return draw.floats(rows, size, scale=3.0), draw.floats(size), EPS


def _add_norm(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, weight, eps = _norm(draw, facts, rows)
    return x, draw.floats(*x.shape), weight, eps


def _sandwich(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, residual, weight, eps = _add_norm(draw, facts, rows)
    return x, residual, draw.floats(*weight.shape), weight, eps


def _wide_residual(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    x, _, weight, eps = _add_norm(draw, facts, rows)
    return x, draw.reals(*x.shape), weight, eps


def _gated(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return (draw.floats(rows, 2 * facts["intermediate_size"], scale=2.0),)


def _sigmoid_gate(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["size"]), draw.floats(rows, facts["gate_size"], scale=2.0)


def _rope(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    latent = "qk_rope_head_dim" in facts  # all heads share a key, and what is rotated lies by itself
    width = facts["qk_rope_head_dim" if latent else "head_dim"]
    q, k = (draw.floats(rows, heads, width) for heads in (facts["num_heads"], facts.get("num_kv_heads", 1)))
    table = angles(_POSITIONS, rotary_dim(facts)).to(draw.random.device)
    return q, k, draw.whole(0, _POSITIONS, rows), table


def rotary_dim(facts: Facts) -> int:
    """Width of the table of cosines and sines."""
    width: int = facts["rotary_dim"] if "rotary_dim" in facts else facts["qk_rope_head_dim"]
    return width


def angles(positions: int, rotary_dim: int) -> Tensor:
    """Cosines and sines, float32 ``[positions, rotary_dim]`` (``llmk.reference.rope.rotation``)."""
    frequencies = 100.0 ** -(torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    turned = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat((turned.cos(), turned.sin()), dim=-1)


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


EXAMPLES: Mapping[str, OpExamples] = {
    **dict.fromkeys(("rms_norm", "rms_norm_plus_one"), OpExamples(_SIZES, _norm, (0,), (0,))),
    **dict.fromkeys(("add_rms_norm", "add_rms_norm_plus_one"), OpExamples(_SIZES, _add_norm, (0, 1))),
    "sandwich_norm_plus_one": OpExamples(_SIZES, _sandwich, (0, 1)),
    "add_rms_norm_fp32_residual": OpExamples(_SIZES, _wide_residual, (0, 1)),
    **dict.fromkeys(("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"), OpExamples(_INNER, _gated, (0,))),
    "sigmoid_gate": OpExamples(_GATES, _sigmoid_gate, (0, 1)),
    **dict.fromkeys(("rope", "rope_interleaved"), OpExamples(_HEADS, _rope, (0, 1, 2), (0, 1))),
    "embedding": OpExamples(_TABLES, _embedding, (0,)),
    "scaled_embedding": OpExamples(_TABLES, _scaled_embedding, (0,)),
    "per_head_product": OpExamples((_LATENT,), _per_head, (0,), (0,)),
}
"""Ops that work alike on all values: what they are tried on is what they are measured on. What depends on values, as
sampling and batch state do, is tried in corners (:mod:`llmk_testing.inputs`: padding, ties, sequences that end) that no
step is full of, and measured on what steps are full of (:data:`MEASURED`)."""


def _logits(draw: Draw, facts: Facts, rows: int) -> Tensor:
    """float32 ``[rows, vocab]``, as far apart as a model's."""
    return draw.reals(rows, facts["vocab_size"]).mul_(3.0)


def _arange(draw: Draw, count: int) -> Tensor:
    return torch.arange(count, device=draw.random.device)


def _history(draw: Draw, facts: Facts, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens that stand in slots, the slots, and how many each has."""
    tokens, slots = draw.whole(0, facts["vocab_size"], rows, 1024).to(torch.int32), _arange(draw, rows)
    return tokens, slots, torch.full_like(slots, 1000)


def _penalties(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    tokens, slots, known = _history(draw, facts, rows)
    third = torch.full((rows,), 0.3, device=slots.device)
    return _logits(draw, facts, rows), slots, tokens, slots, known // 2, known, third, third, 1 + third


def _places(draw: Draw, facts: Facts, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return _logits(draw, facts, rows), _arange(draw, rows), draw.whole(0, facts["vocab_size"], rows)


def _bias(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return *_places(draw, facts, rows), draw.reals(rows)


def _suffixes(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    tokens, slots, known = _history(draw, facts, rows)
    return tokens, slots, torch.zeros_like(known), known, tokens[:, 998:1000].long()


def _allowed(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    logits, at, ids = _places(draw, facts, rows)
    return logits, at, at, ids


def _logprobs(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    logits, _, ids = _places(draw, facts, rows)
    return logits, ids, min(_TOP, facts["vocab_size"])


def _append(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    tokens, slots, known = _history(draw, facts, rows)
    return tokens, known, slots, draw.whole(0, facts["vocab_size"], rows)


def _slots(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    table, at = draw.whole(0, 4096, rows, 64).to(torch.int32), _arange(draw, rows)
    return table, at, at, draw.whole(0, 1024, rows), 16, 64


MEASURED: Mapping[str, Make] = {
    **{op: examples.make for op, examples in EXAMPLES.items()},
    "softcap": lambda draw, facts, rows: (draw.reals(rows, facts["size"]), 30.0),
    "apply_penalties": _penalties,
    "apply_bias": _bias,
    "match_suffixes": _suffixes,
    "allow_tokens": _allowed,
    "sample": lambda draw, facts, rows: (_logits(draw, facts, rows), *(None,) * 6),
    "logprobs": _logprobs,
    "append_tokens": _append,
    "map_slots": _slots,
}
"""What ops are measured on. A ``KeyError`` says which size a site's facts lack: those of a part are its composite's."""


def _qkv(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """What goes before positions in the ops over attention."""
    heads, kv_heads, width = (facts[name] for name in ("num_heads", "num_kv_heads", "head_dim"))
    norms = [draw.floats(width) if facts["qk_norm"] else None for _ in range(2)]
    return *(draw.floats(rows, count, width) for count in (heads, kv_heads, kv_heads)), *norms, EPS


def _latent(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    rank, rope = facts["kv_lora_rank"], facts["qk_rope_head_dim"]
    return draw.floats(rows, rank + rope), draw.floats(rank), EPS


def _norm_latent(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return draw.floats(rows, facts["num_heads"], facts["qk_rope_head_dim"]), *_latent(draw, facts, rows)


def _latent_attention(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    heads, plain, rope, rank = (
        facts[name] for name in ("num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
    )
    q = draw.floats(rows, heads, plain + rope)
    ups = [draw.floats(heads, *shape, scale=rank**-0.5) for shape in ((plain, rank), (rank, facts["v_head_dim"]))]
    return q, *_latent(draw, facts, rows), *ups


OVER_ATTENTION: Mapping[str, Make] = {
    f"qk_norm_{plus_one}rope_{rest}": _qkv for plus_one in ("", "plus_one_") for rest in ("write_kv", "attention")
} | {"norm_rope_write_latent": _norm_latent, "latent_attention": _latent_attention}
"""Of ops over attention, the arguments before positions, the table of cosines and sines, cache and meta."""
