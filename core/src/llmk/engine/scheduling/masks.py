"""Which tokens grammars allow, for a step whose logits are being computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmk.api import LlmkError
from llmk.engine.wire.step import Masks

if TYPE_CHECKING:
    from llmk.engine.scheduling.issued_step import IssuedStep
    from llmk.engine.scheduling.sequence import Sequence

Fail = Callable[["Sequence", LlmkError], None]
"""Ends a sequence with an error."""


def fill_masks(step: IssuedStep, vocab_size: int, fail: Fail) -> Masks:
    """The masks of a step's rows, once the results of all steps before it are known. Sequences that have ended get
    none; one whose grammar raises fails."""
    words = -(-vocab_size // 32)
    rows: list[int] = []
    parts: list[bytes] = []
    row = 0
    for (sequence, *_), work in zip(step.entries, step.plan.work, strict=True):
        if work.masked and sequence.grammar is not None and not sequence.finished:
            bits = bytearray(4 * words)
            try:
                sequence.grammar.fill(memoryview(bits).cast("i"))
                rows.append(row)
                parts.append(bytes(bits))
            except LlmkError as error:
                fail(sequence, error)
        row += 1 + work.num_drafts if work.sample else 0
    return Masks(step=step.plan.step, rows=rows, bits=b"".join(parts))
