"""The batch's state around a step, and the most likely tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.batch import StepTensors
from llmk.reference.sampling import sample as reference
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, rows_of

_build_step = library().function("build_step", "ppppppipppii")
_compute_slot_mapping = library().function("compute_slot_mapping", "pppipppiiii")
_append_tokens = library().function("append_tokens", "pipppi")
_most_likely = library().function("most_likely", "ppiiid")


def build_step(tokens: Tensor, computed: Tensor, slots: Tensor, counts: Tensor, num_tokens: int) -> StepTensors:
    """As :func:`llmk.reference.batch.build_step`."""
    requests = len(slots)
    found = StepTensors(
        torch.empty(num_tokens, dtype=torch.int64),
        torch.empty(num_tokens, dtype=torch.int64),
        torch.empty(requests + 1, dtype=torch.int32),
        torch.empty(requests, dtype=torch.int32),
        torch.empty(num_tokens, dtype=torch.int64),
    )
    slots, counts = slots.contiguous(), counts.contiguous()
    _build_step(
        *(each.data_ptr() for each in found), tokens.data_ptr(), tokens.stride(0), computed.data_ptr(),
        slots.data_ptr(), counts.data_ptr(), requests, num_tokens,
    )  # fmt: skip
    return found


def compute_slot_mapping(
    table: Tensor, slots: Tensor, rows: Tensor, positions: Tensor, block_size: int, max_blocks: int
) -> tuple[Tensor, Tensor]:
    """As :func:`llmk.reference.batch.compute_slot_mapping`."""
    requests, num_tokens = len(slots), len(rows)
    block_table = torch.empty((requests, max_blocks), dtype=torch.int32)
    slot_mapping = torch.empty(num_tokens, dtype=torch.int64)
    slots, rows, positions = slots.contiguous(), rows.contiguous(), positions.contiguous()
    _compute_slot_mapping(
        block_table.data_ptr(), slot_mapping.data_ptr(), table.data_ptr(), table.stride(0), slots.data_ptr(),
        rows.data_ptr(), positions.data_ptr(), block_size, max_blocks, requests, num_tokens,
    )  # fmt: skip
    return block_table, slot_mapping


def append_tokens(tokens: Tensor, computed: Tensor, slots: Tensor, sampled: Tensor) -> None:
    """As :func:`llmk.reference.batch.append_tokens`."""
    slots, sampled = slots.contiguous(), sampled.contiguous()
    _append_tokens(
        tokens.data_ptr(), tokens.stride(0), computed.data_ptr(), slots.data_ptr(), sampled.data_ptr(), len(slots)
    )


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """As :func:`llmk.reference.sampling.sample.sample`, which samples where not all rows are greedy."""
    if temperature is not None:
        return reference.sample(logits, temperature, top_k, top_p, min_p, seeds, positions)
    rows = rows_of(logits)
    out = torch.empty(len(rows), dtype=torch.int64)
    _most_likely(out.data_ptr(), rows.data_ptr(), rows.stride(0), *rows.shape, CODES[logits.dtype])
    return out
