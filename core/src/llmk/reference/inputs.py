"""Random inputs for ops by their names, made from what a site's facts say of sizes; and what of its arguments an op
changes. For whoever measures or compares kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EPS = 1e-6
_TOP = 20
"""Likeliest tokens whose log-probabilities are asked for."""

WEIGHTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("embedding", "scaled_embedding", "gate_up_silu", "gate_up_gelu_tanh"), (1,)),
    **dict.fromkeys(("add_rms_norm_linear", "add_rms_norm_gate_up_silu"), (4,)),
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


@dataclass(frozen=True, slots=True)
class Source:
    """Where random tensors come from. ``dtype`` is the engine's."""

    generator: torch.Generator
    dtype: torch.dtype

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normally distributed numbers."""
        where: dict[str, Any] = {"generator": self.generator, "device": self.generator.device}
        return torch.randn(shape, dtype=dtype or self.dtype, **where).mul_(scale)

    def whole(self, limit: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers below ``limit``."""
        return torch.randint(limit, shape, dtype=dtype, generator=self.generator, device=self.generator.device)

    def logits(self, rows: int, facts: Mapping[str, Any]) -> Tensor:
        """float32 ``[rows, vocab]``, as far apart as a model's."""
        return self.normal(rows, facts["vocab_size"], scale=3.0, dtype=torch.float32)

    def arange(self, count: int) -> Tensor:
        """int64 ``[count]``."""
        return torch.arange(count, device=self.generator.device)


Inputs = Callable[[Source, int, Mapping[str, Any]], tuple[Any, ...]]
"""The arguments of an op for so many tokens (or rows), at a site with these facts."""


def _norm(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return source.normal(tokens, facts["size"]), source.normal(facts["size"]), EPS


def _add_norm(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    x, weight, eps = _norm(source, tokens, facts)
    return x, source.normal(tokens, facts["size"]), weight, eps


def _sandwich_norm(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    x, residual, weight, eps = _add_norm(source, tokens, facts)
    return x, residual, source.normal(facts["size"]), weight, eps


def _activation(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return (source.normal(tokens, 2 * facts["intermediate_size"]),)


def _rope(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    latent = "qk_rope_head_dim" in facts  # all heads share a key, and what is rotated lies by itself
    width = facts["qk_rope_head_dim" if latent else "head_dim"]
    q, k = (source.normal(tokens, heads, width) for heads in (facts["num_heads"], facts.get("num_kv_heads", 1)))
    return q, k, source.arange(tokens), source.normal(tokens, rotary_dim(facts), dtype=torch.float32)


def _embedding(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return source.whole(facts["vocab_size"], tokens), source.normal(facts["vocab_size"], facts["hidden_size"])


def _history(source: Source, rows: int, facts: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens that stand in slots, the slots, and how many each has."""
    tokens = source.whole(facts["vocab_size"], rows, 1024, dtype=torch.int32)
    return tokens, source.arange(rows), torch.full_like(source.arange(rows), 1000)


def _penalties(source: Source, rows: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    tokens, slots, known = _history(source, rows, facts)
    third = torch.full((rows,), 0.3, device=slots.device)
    return source.logits(rows, facts), slots, tokens, slots, known // 2, known, third, third, 1 + third


def _places(source: Source, rows: int, facts: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    return source.logits(rows, facts), source.arange(rows), source.whole(facts["vocab_size"], rows)


def _suffixes(source: Source, rows: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    tokens, slots, known = _history(source, rows, facts)
    return tokens, slots, torch.zeros_like(known), known, tokens[:, 998:1000].long()


def _slots(source: Source, rows: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    table = source.whole(4096, rows, 64, dtype=torch.int32)
    return table, source.arange(rows), source.arange(rows), source.whole(1024, rows), 16, 64


def _allowed(source: Source, rows: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    logits, at, ids = _places(source, rows, facts)
    return logits, at, at, ids


def _product_per_head(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    heads, width, rank = facts["num_heads"], facts["qk_nope_head_dim"], facts["kv_lora_rank"]
    return source.normal(tokens, heads, width), source.normal(heads, width, rank, scale=width**-0.5)


INPUTS: Mapping[str, Inputs] = {
    **dict.fromkeys(("rms_norm", "rms_norm_plus_one"), _norm),
    **dict.fromkeys(("add_rms_norm", "add_rms_norm_plus_one", "add_rms_norm_fp32_residual"), _add_norm),
    "sandwich_norm_plus_one": _sandwich_norm,
    **dict.fromkeys(("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"), _activation),
    "softcap": lambda source, rows, facts: (source.normal(rows, facts["size"], dtype=torch.float32), 30.0),
    "sigmoid_gate": lambda source, rows, facts: tuple(
        source.normal(rows, facts[name]) for name in ("size", "gate_size")
    ),
    **dict.fromkeys(("rope", "rope_interleaved"), _rope),
    "per_head_product": _product_per_head,
    "embedding": _embedding,
    "scaled_embedding": lambda source, tokens, facts: (*_embedding(source, tokens, facts), 8.0),
    "apply_penalties": _penalties,
    "apply_bias": lambda source, rows, facts: (
        *_places(source, rows, facts),
        source.normal(rows, dtype=torch.float32),
    ),
    "match_suffixes": _suffixes,
    "allow_tokens": _allowed,
    "sample": lambda source, rows, facts: (source.logits(rows, facts), *(None,) * 6),
    "logprobs": lambda source, rows, facts: (*_places(source, rows, facts)[::2], min(_TOP, facts["vocab_size"])),
    "append_tokens": lambda source, rows, facts: (
        source.whole(facts["vocab_size"], rows, 1024, dtype=torch.int32),
        torch.full_like(source.arange(rows), 1000),
        source.arange(rows),
        source.whole(facts["vocab_size"], rows),
    ),
    "map_slots": _slots,
}
"""By the op's name. A ``KeyError`` says which size a site's facts lack: those of a part are its composite's."""


def _qkv(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """What goes before positions in the ops over attention."""
    heads, kv_heads, width = (facts[name] for name in ("num_heads", "num_kv_heads", "head_dim"))
    norms = [source.normal(width) if facts["qk_norm"] else None for _ in range(2)]
    return *(source.normal(tokens, count, width) for count in (heads, kv_heads, kv_heads)), *norms, EPS


def _latent(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    rank, rope = facts["kv_lora_rank"], facts["qk_rope_head_dim"]
    return source.normal(tokens, rank + rope), source.normal(rank), EPS


def _latent_attention(source: Source, tokens: int, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    heads, plain, rope, rank = (
        facts[name] for name in ("num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
    )
    q = source.normal(tokens, heads, plain + rope)
    ups = [source.normal(heads, *shape, scale=rank**-0.5) for shape in ((plain, rank), (rank, facts["v_head_dim"]))]
    return q, *_latent(source, tokens, facts), *ups


OVER_ATTENTION: Mapping[str, Inputs] = {
    f"qk_norm_{plus_one}rope_{rest}": _qkv for plus_one in ("", "plus_one_") for rest in ("write_kv", "attention")
} | {
    "norm_rope_write_latent": lambda source, tokens, facts: (
        source.normal(tokens, facts["num_heads"], facts["qk_rope_head_dim"]),
        *_latent(source, tokens, facts),
    ),
    "latent_attention": _latent_attention,
}
"""Of ops over attention, the arguments before positions, the table of cosines and sines, cache and meta."""


def rotary_dim(facts: Mapping[str, Any]) -> int:
    """Width of that table."""
    width: int = facts["rotary_dim"] if "rotary_dim" in facts else facts["qk_rope_head_dim"]
    return width
