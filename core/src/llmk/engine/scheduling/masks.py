"""Which tokens grammars allow, for a step whose logits are being computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from llmk.api import LlmkError
from llmk.engine.wire.step import Masks

if TYPE_CHECKING:
    from llmk.api import Grammar
    from llmk.engine.scheduling.issued_step import IssuedStep
    from llmk.engine.scheduling.sequence import Sequence

Fail = Callable[["Sequence", LlmkError], None]
"""Ends a sequence with an error."""


def fill_masks(step: IssuedStep, vocab_size: int, fail: Fail) -> Masks:
    """The masks of a step's rows, once the results of all steps before it are known. Sequences that have ended get
    none, nor do rows behind a draft that is not allowed, whose tokens are never taken; a sequence whose grammar raises
    fails."""
    words = -(-vocab_size // 32)
    rows: list[int] = []
    parts: list[bytearray] = []
    row = 0
    for (sequence, *_), work in zip(step.entries, step.plan.work, strict=True):
        if work.masked and sequence.grammar is not None and not sequence.finished:
            try:
                masks = _masks_of(sequence.grammar, work.drafts, words)
                rows += range(row, row + len(masks))
                parts += masks
            except LlmkError as error:
                fail(sequence, error)
        row += 1 + work.num_drafts if work.sample else 0
    return Masks(step=step.plan.step, rows=rows, bits=b"".join(parts))


def _masks_of(grammar: Grammar, drafts: Iterable[int], words: int) -> list[bytearray]:
    """What may follow the output, and each of ``drafts`` behind it, up to one that is not allowed."""
    masks = [_mask(grammar, words)]
    for draft in drafts:
        if not masks[-1][draft >> 3] >> (draft & 7) & 1:
            break
        grammar.accept([draft])
        masks.append(_mask(grammar, words))
    if len(masks) > 1:
        grammar.rollback(len(masks) - 1)
    return masks


def _mask(grammar: Grammar, words: int) -> bytearray:
    bits = bytearray(4 * words)
    grammar.fill(memoryview(bits).cast("i"))
    return bits
