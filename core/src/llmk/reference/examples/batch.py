"""Ops on the batch state: tested on corner cases such as padding, measured on what steps are full of."""

from __future__ import annotations

from typing import Any

import torch

from llmk.reference.examples.sampling import history
from llmk.reference.op_examples import Draw, Facts, OpExamples

_VOCAB = 1000
_NO_FACTS: tuple[Facts, ...] = ({},)


def _update_rows(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    starts, lengths = draw.whole(0, 30, rows), draw.whole(0, 30, rows)
    table = draw.whole(0, 1000, rows + 3, 64).to(torch.int32)
    return table, draw.order(rows + 3)[:rows], starts, lengths, draw.whole(0, 10**6, int(lengths.sum()))


def _build_step(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Prompts and decodes, then padding of both kinds."""
    counts = torch.where(draw.whole(0, 2, rows) > 0, 1, draw.whole(1, 9, rows))
    slots = torch.cat([draw.order(rows + 2)[:rows], torch.tensor([-1, -1])])
    tokens, computed = draw.whole(0, _VOCAB, rows + 2, 64).to(torch.int32), draw.whole(0, 50, rows + 2)
    return tokens, computed, slots, torch.cat([counts, torch.zeros(2, dtype=torch.int64)]), int(counts.sum()) + 3


def _compute_slot_mapping(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    table = draw.order((rows + 2) * 8).view(rows + 2, 8).to(torch.int32)
    owners = draw.whole(0, rows, 3 * rows).sort().values
    owners[-1] = -1
    return table, draw.order(rows + 2)[:rows], owners, draw.whole(0, 16 * 5, 3 * rows), 16, 5


def _measured_slots(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    table, at = draw.whole(0, 4096, rows, 64).to(torch.int32), torch.arange(rows, device=draw.random.device)
    return table, at, at, draw.whole(0, 1024, rows), 16, 64


def _append(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    slots = torch.cat([draw.order(rows + 2)[:rows], torch.tensor([-1])])
    vocab = facts["vocab_size"]
    tokens, computed = draw.whole(0, vocab, rows + 2, 64).to(torch.int32), draw.whole(1, 50, rows + 2)
    return tokens, computed, slots, draw.whole(0, vocab, rows + 1)


def _accept(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """From no drafts to four, of which none to all are what was sampled, then padding."""
    slots = draw.order(rows + 2)[:rows]
    counts, computed = draw.whole(1, 6, rows), draw.whole(5, 50, rows + 2)
    tokens, sampled = draw.whole(0, _VOCAB, rows + 2, 64).to(torch.int32), draw.whole(0, _VOCAB, int(counts.sum()) + 1)
    starts, kept = counts.cumsum(0) - counts, draw.whole(0, 6, rows)
    for draft in range(4):
        places = computed[slots] - counts + 1 + draft
        equal = (draft < kept) & (draft < counts - 1)
        found = sampled[(starts + draft).clamp(max=sampled.shape[0] - 1)].to(torch.int32)
        tokens[slots, places] = torch.where(equal, found, tokens[slots, places])
    padding = torch.zeros_like(slots[:1])
    slots, starts, counts = (torch.cat(pair) for pair in ((slots, padding - 1), (starts, padding), (counts, padding)))
    return tokens, computed, slots, starts, counts, sampled, 5


def _measured_append(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    tokens, slots, known = history(draw, facts, rows)
    return tokens, known, slots, draw.whole(0, facts["vocab_size"], rows)


UPDATE_ROWS = OpExamples(_NO_FACTS, _update_rows)
BUILD_STEP = OpExamples(_NO_FACTS, _build_step)
SLOT_MAPPING = OpExamples(_NO_FACTS, _compute_slot_mapping, benchmark=_measured_slots)
ACCEPT_DRAFTS = OpExamples(_NO_FACTS, _accept)
APPEND_TOKENS = OpExamples(({"vocab_size": _VOCAB},), _append, benchmark=_measured_append)
