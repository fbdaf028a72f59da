"""Contracts of the ops over rows of each token, which they find by the block table themselves."""

from __future__ import annotations

from llmk.reference.step_contracts import contract

LATENT = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""The sizes of latent attention."""

OVER_ROWS = (
    contract(
        op="select_tokens",
        signature="(q, k, weights, cache, step) -> selected",
        facts=("num_heads", "head_dim", "top_k"),
        examples="selected:SELECT_TOKENS",
        measured=False,
        mutates_args=("cache",),
        summary="The tokens that each token attends to, by an indexer.",
    ),
    contract(
        op="selected_attention",
        signature="(query, row, selected, cache, step) -> out",
        facts=(*LATENT, "top_k"),
        examples="selected:SELECTED_ATTENTION",
        measured=False,
        mutates_args=("cache",),
        summary="Attention over latent rows of selected tokens.",
    ),
    contract(
        op="selected_latent_attention",
        signature=("(q, latent, norm_weight, eps, k_up, v_up, positions, cos_sin, selected, cache, step) -> out"),
        facts=(*LATENT, "top_k"),
        parts=("rms_norm", "rope_interleaved", "per_head_matmul", "selected_attention"),
        examples="selected:SELECTED_LATENT_ATTENTION",
        measured=False,
        mutates_args=("cache",),
        summary="Latent attention to selected tokens.",
    ),
    contract(
        op="select_entries",
        signature="(q, weights, rows, bias, weight, eps, cos_sin, caches, step) -> selected",
        facts=("num_heads", "head_dim", "rotary_dim", "rate", "top_k"),
        examples="compressed:SELECT_ENTRIES",
        measured=False,
        mutates_args=("caches",),
        summary="The groups of earlier tokens that each token attends to, by an indexer.",
    ),
    contract(
        op="compressed_attention",
        signature=("(q, kv, rows, bias, weight, eps, cos_sin, selected, sinks, caches, step) -> out"),
        facts=("num_heads", "head_dim", "rotary_dim", "window", "rate", "top_k"),
        examples="compressed:COMPRESSED_ATTENTION",
        measured=False,
        mutates_args=("caches",),
        summary="Attention to the last tokens, and to entries that stand for groups of earlier ones.",
    ),
)
