"""The batch's state around a step, and the tokens that are drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.batch import StepTensors
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, rows_of

_build_step = library().function("build_step", "ppppppipppii")
_compute_slot_mapping = library().function("compute_slot_mapping", "pppipppiiii")
_append_tokens = library().function("append_tokens", "pipppi")
_most_likely = library().function("most_likely", "ppiiid")
_sample = library().function("sample", "ppipppppppiiid")


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
    """As :func:`llmk.reference.sampling.sample.sample`."""
    logits = rows_of(logits)
    rows, vocab = logits.shape
    out, code = torch.empty(rows, dtype=torch.int64), CODES[logits.dtype]
    _most_likely(out.data_ptr(), logits.data_ptr(), logits.stride(0), rows, vocab, code)
    if temperature is None or seeds is None or positions is None:
        return out
    slots = min(rows, library().threads)
    scratch = torch.empty(slots * 3 * vocab, dtype=torch.int32)
    given = [
        each if each is None else each.contiguous() for each in (temperature, top_k, top_p, min_p, seeds, positions)
    ]
    _sample(
        out.data_ptr(), logits.data_ptr(), logits.stride(0),
        *(None if each is None else each.data_ptr() for each in given), scratch.data_ptr(), slots, rows, vocab, code,
    )  # fmt: skip
    return out
