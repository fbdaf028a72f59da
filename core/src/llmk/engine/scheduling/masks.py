"""Which tokens grammars allow, for a step whose logits are being computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from llmk.api import LlmkError
from llmk.engine.text.guarded_grammar import GuardedGrammar
from llmk.engine.wire.step import Masks

if TYPE_CHECKING:
    from llmk.engine.scheduling.issued_step import IssuedStep
    from llmk.engine.scheduling.sequence import Sequence

Fail = Callable[["Sequence", LlmkError], None]
"""Ends a sequence with an error."""
_WORD = 4
"""Bytes of a mask's words."""


def fill_masks(step: IssuedStep, vocab_size: int, fail: Fail) -> Masks:
    """The masks of a step's rows, once the results of all steps before it are known. Sequences that have ended get
    none, nor do rows behind a draft that is not allowed, whose tokens are never taken; a sequence whose grammar raises
    fails."""
    size = -(-vocab_size // 32) * _WORD
    alone: list[tuple[int, Sequence, GuardedGrammar]] = []
    rows: list[int] = []
    drafted = bytearray()
    row = 0
    for (sequence, *_), work in zip(step.entries, step.plan.work, strict=True):
        if work.masked and sequence.grammar is not None and not sequence.finished:
            if work.num_drafts:
                try:
                    masks = _with_drafts(sequence.grammar, work.drafts, size)
                    rows += range(row, row + len(masks))
                    drafted += b"".join(masks)
                except LlmkError as error:
                    fail(sequence, error)
            else:
                alone.append((row, sequence, sequence.grammar))
        row += 1 + work.num_drafts if work.sample else 0
    bits = bytearray(size * len(alone))
    parts = [memoryview(bits)[start : start + size].cast("i") for start in range(0, len(bits), size)]
    errors = GuardedGrammar.fill_all([grammar for *_, grammar in alone], parts)
    for number, why in errors.items():
        fail(alone[number][1], why)
    if errors:
        bits = bytearray().join(part for number, part in enumerate(parts) if number not in errors)
    rows = [row for number, (row, *_) in enumerate(alone) if number not in errors] + rows
    return Masks(step=step.plan.step, rows=rows, bits=bits + drafted)


def _with_drafts(grammar: GuardedGrammar, drafts: Iterable[int], size: int) -> list[bytearray]:
    """What may follow the output, and each of ``drafts`` behind it, up to one that is not allowed."""
    masks = [_mask(grammar, size)]
    for draft in drafts:
        if not masks[-1][draft >> 3] >> (draft & 7) & 1:
            break
        grammar.accept([draft])
        masks.append(_mask(grammar, size))
    if len(masks) > 1:
        grammar.rollback(len(masks) - 1)
    return masks


def _mask(grammar: GuardedGrammar, size: int) -> bytearray:
    bits = bytearray(size)
    grammar.fill(memoryview(bits).cast("i"))
    return bits
