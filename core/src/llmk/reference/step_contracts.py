"""Contracts of the ops that the engine runs around the model: they keep the batch's state, and sample."""

from __future__ import annotations

from typing import Any

from llmk.api import OpContract


def contract(*, op: str, examples: str, **fields: Any) -> OpContract:
    return OpContract(id=f"reference.{op}", op=op, examples=f"llmk.reference.examples.{examples}", **fields)


SAMPLING = (
    contract(
        op="apply_penalties",
        signature="(logits, rows, tokens, slots, prompt_lengths, known, presence, frequency, repetition) -> logits",
        facts=("vocab_size",),
        examples="sampling:APPLY_PENALTIES",
        mutates_args=("logits",),
        summary="Repetition, frequency and presence penalties.",
    ),
    contract(
        op="apply_bias",
        signature="(logits, rows, ids, values) -> logits",
        facts=("vocab_size",),
        examples="sampling:APPLY_BIAS",
        mutates_args=("logits",),
        summary="Logit biases, in place.",
    ),
    contract(
        op="match_suffixes",
        signature="(tokens, slots, starts, ends, suffixes) -> matched",
        facts=("vocab_size",),
        examples="sampling:MATCH_SUFFIXES",
        summary="Whether requests end with given token sequences.",
    ),
    contract(
        op="allow_tokens",
        signature="(logits, rows, at, ids) -> logits",
        facts=("vocab_size",),
        examples="sampling:ALLOW_TOKENS",
        mutates_args=("logits",),
        summary="Excludes all tokens except those allowed, in place.",
    ),
    contract(
        op="apply_mask",
        signature="(logits, rows, bits) -> logits",
        facts=("vocab_size",),
        examples="sampling:APPLY_MASK",
        mutates_args=("logits",),
        summary="Excludes the tokens that packed masks exclude, in place.",
    ),
    contract(
        op="mask_top_k_top_p_min_p",
        signature="(logits, top_k, top_p, min_p) -> logits",
        facts=("vocab_size",),
        examples="sampling:MASK",
        measured=False,
        summary="Top-k, top-p and min-p truncation.",
    ),
    contract(
        op="sample",
        signature="(logits, temperature, top_k, top_p, min_p, seeds, positions) -> token_ids",
        facts=("vocab_size",),
        examples="sampling:SAMPLE",
        summary="Samples one token per row, by a hash of seed and position.",
    ),
    contract(
        op="logprobs",
        signature="(logits, token_ids, num_top) -> logprobs, ranks, top_ids, top_logprobs",
        facts=("vocab_size",),
        examples="sampling:LOGPROBS",
        summary="Log-probabilities, ranks and the most likely tokens.",
    ),
)

BATCH = (
    contract(
        op="update_rows",
        signature="(table, rows, starts, lengths, values) -> None",
        examples="batch:UPDATE_ROWS",
        measured=False,
        mutates_args=("table",),
        summary="Writes runs of different lengths into rows of the batch state, in place.",
    ),
    contract(
        op="build_step",
        signature="(tokens, computed, slots, counts, num_tokens) -> step",
        examples="batch:BUILD_STEP",
        measured=False,
        mutates_args=("computed",),
        summary="Builds a step's input tensors, and counts its tokens as computed.",
    ),
    contract(
        op="compute_slot_mapping",
        signature="(table, slots, rows, positions, block_size, max_blocks) -> block_table, slot_mapping",
        examples="batch:SLOT_MAPPING",
        summary="Block table and slot mapping of a step.",
    ),
    contract(
        op="append_tokens",
        signature="(tokens, computed, slots, sampled) -> None",
        facts=("vocab_size",),
        examples="batch:APPEND_TOKENS",
        mutates_args=("tokens",),
        summary="Writes sampled tokens where the next step reads them.",
    ),
    contract(
        op="accept_drafts",
        signature="(tokens, computed, slots, starts, counts, sampled, most) -> gained",
        examples="batch:ACCEPT_DRAFTS",
        measured=False,
        mutates_args=("tokens", "computed"),
        summary="Compares drafts with what was sampled in their place, and keeps those that are equal.",
    ),
)
