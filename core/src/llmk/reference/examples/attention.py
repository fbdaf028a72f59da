"""Ops over attention."""

from __future__ import annotations

from typing import Any

from llmk.api import AttentionQuery
from llmk.reference.examples.rows import eps, rotary_keywords, rotation, sum_keywords
from llmk.reference.op_examples import Draw, Facts, OpExamples

_KEY_DIM, _VALUE_DIM = 32, 24
"""Of the heads of latent attention, before they are absorbed."""


def _head_facts(site: AttentionQuery) -> tuple[Facts, ...]:
    """With norms of queries and keys, of both kinds, and without; not rotated, with positions of several axes, with
    neighbours as pairs, normed after the rotation, and with keys and values of another layer. Small heads are rotated
    whole, others by half and whole."""
    if site.latent_dim is not None:
        return ()
    sizes = {name: getattr(site, name) for name in ("num_heads", "num_kv_heads", "head_dim")}
    rotary_dim = site.head_dim if site.head_dim < 64 else site.head_dim // 2
    if site.sinks:
        sizes["attention_sinks"] = True
    if site.alibi:
        sizes["alibi"] = True
    if site.value_dim is not None:
        sizes["value_dim"] = site.value_dim
    sections = (2, rotary_dim // 2 - 2)
    kinds: tuple[Facts, ...] = (
        {"rotary_dim": rotary_dim, "qk_norm": True},
        {"rotary_dim": rotary_dim, "qk_norm": False},
        {"rotary_dim": rotary_dim, "qk_norm": True, "norm_offset": 1.0},
        {"rotary_dim": 0, "qk_norm": True, "no_rope": True},
        {"rotary_dim": rotary_dim, "qk_norm": False, "rotary_sections": sections},
        {"rotary_dim": rotary_dim, "qk_norm": True, "rotary_neighbours": True},
        {"rotary_dim": rotary_dim, "qk_norm": True, "norm_after_rope": True},
        {"rotary_dim": rotary_dim, "qk_norm": True, "shared_kv": True},
        {"rotary_dim": rotary_dim, "qk_norm": True, "rotary_sections": sections, "rotary_neighbours": True},
    )
    if rotary_dim < site.head_dim:
        kinds += ({"rotary_dim": site.head_dim, "qk_norm": False},)
    return tuple({**sizes, **kind} for kind in kinds)


def _latent_facts(site: AttentionQuery) -> tuple[Facts, ...]:
    if site.latent_dim is None:
        return ()
    sizes = {"kv_lora_rank": site.latent_dim, "qk_rope_head_dim": site.head_dim - site.latent_dim}
    return ({"num_heads": site.num_heads, **sizes, "qk_nope_head_dim": _KEY_DIM, "v_head_dim": _VALUE_DIM},)


def _qkv(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    heads, kv_heads, width = (facts[name] for name in ("num_heads", "num_kv_heads", "head_dim"))
    widths = (width, width, facts.get("value_dim", width))
    qkv: list[Any] = [draw.floats(rows, *shape) for shape in zip((heads, kv_heads, kv_heads), widths, strict=True)]
    qkv = [qkv[0], None, None] if "shared_kv" in facts else qkv
    norms = [draw.floats(width) if facts["qk_norm"] else None for _ in range(2)]
    if "no_rope" in facts:
        return *qkv, *norms, eps(draw), draw.positions(rows), None
    return *qkv, *norms, eps(draw), *rotation(draw, facts["rotary_dim"], rows, facts)


def _latent(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    rank, rope = facts["kv_lora_rank"], facts["qk_rope_head_dim"]
    return draw.floats(rows, rank + rope), draw.floats(rank), eps(draw)


def _write_latent(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    rope = facts["qk_rope_head_dim"]
    q_rope = draw.floats(rows, facts["num_heads"], rope)
    return q_rope, *_latent(draw, facts, rows), *rotation(draw, rope, rows, {})


def _latent_attention(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    heads, plain, rope, rank, value = (
        facts[name] for name in ("num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
    )
    q, latent = draw.floats(rows, heads, plain + rope), _latent(draw, facts, rows)
    k_up = draw.floats(heads, plain, rank, scale=plain**-0.5)
    v_up = draw.floats(heads, rank, value, scale=rank**-0.5)
    return q, *latent, k_up, v_up, *rotation(draw, rope, rows, {})


def _keywords(draw: Draw, facts: Facts) -> Facts:
    after = {"norm_after_rope": True} if "norm_after_rope" in facts else {}
    return {**rotary_keywords(draw, facts), **sum_keywords(draw, facts), **after}


QK_NORM_ROPE = OpExamples(
    _head_facts, _qkv, by_row=("q", "k", "v", "positions"), wide=("q", "k", "v"), keywords=_keywords
)
WRITE_LATENT = OpExamples(_latent_facts, _write_latent, by_row=("q_rope", "latent", "positions"))
LATENT_ATTENTION = OpExamples(_latent_facts, _latent_attention, by_row=("q", "latent", "positions"))
