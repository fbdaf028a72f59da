"""What the host knows of running requests, one per slot, and how it lays out a step for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmk.api import Step, StepRequest, StepSampling, StepWork
from llmk_tpu.packing import Ints, pack
from llmk_tpu.sampling import random_halves
from llmk_tpu.shapes import Shape

NO_ROW = 1 << 30
"""Out of range of any dimension: nothing is written there."""


@dataclass(slots=True)
class _Slot:
    """``tokens`` are those that were known when the request entered; later ones are on the device alone."""

    tokens: Ints
    params: StepSampling
    seed: int
    num_blocks: list[int]


class Slots:
    """The running requests."""

    def __init__(self, num_groups: int) -> None:
        self._groups = range(num_groups)
        self._slots: dict[int, _Slot] = {}

    def apply(self, step: Step) -> Ints:
        """Takes in which requests leave and enter, and their blocks. Returns what changes in the block tables, int32
        ``[changes, 4]``: group, slot, index and block."""
        for slot in step.freed:
            self._slots.pop(slot, None)
        changes: list[tuple[int, int, int, int]] = []
        for request in step.new:
            self._slots[request.slot] = _entered(request, len(self._groups))
            self._grow(request.slot, request.block_ids, changes)
        for work in step.work:
            if work.new_blocks:
                self._grow(work.slot, work.new_blocks, changes)
        return np.array(changes, np.int32).reshape(-1, 4)

    def _grow(self, slot: int, blocks: Sequence[Sequence[int]], changes: list[tuple[int, int, int, int]]) -> None:
        held = self._slots[slot].num_blocks
        for group in self._groups:
            changes += [(group, slot, held[group] + i, block) for i, block in enumerate(blocks[group])]
            held[group] += len(blocks[group])

    def lay_out(self, work: Sequence[StepWork], shape: Shape) -> Ints:
        """A step for the device (:func:`llmk_tpu.packing.sizes`), padded to ``shape``."""
        arrays = {
            "token_ids": np.zeros(shape.tokens, np.int32),
            "positions": np.zeros(shape.tokens, np.int32),
            "rows": np.full(shape.tokens, NO_ROW, np.int32),
            "place": np.zeros(shape.tokens, np.int32),
            "slots": np.zeros(shape.requests, np.int32),
            "sampled_at": np.zeros(shape.requests, np.int32),
            "sampled_slots": np.full(shape.requests, NO_ROW, np.int32),
            "temperature": np.zeros(shape.requests, np.float32),
            "top_k": np.zeros(shape.requests, np.int32),
            "top_p": np.ones(shape.requests, np.float32),
            "min_p": np.zeros(shape.requests, np.float32),
            "high": np.zeros(shape.requests, np.int32),
            "low": np.zeros(shape.requests, np.int32),
            "row": np.zeros(shape.tiles, np.int32),
            "start": np.zeros(shape.tiles, np.int32),
            "size": np.zeros(shape.tiles, np.int32),
        }
        start, tile = 0, 0
        for row, item in enumerate(work):
            end, slot = start + item.num_tokens, self._slots[item.slot]
            known = slot.tokens[item.before : item.before + item.num_tokens]
            arrays["token_ids"][start:end] = -1
            arrays["token_ids"][start : start + len(known)] = known
            arrays["positions"][start:end] = np.arange(item.before, item.before + item.num_tokens)
            arrays["rows"][start:end] = row
            arrays["slots"][row] = item.slot
            arrays["place"][start:end] = tile * shape.tile + np.arange(item.num_tokens)
            for first in range(start, end, shape.tile):
                arrays["row"][tile], arrays["start"][tile] = row, first
                arrays["size"][tile] = min(shape.tile, end - first)
                tile += 1
            if item.sample:
                arrays["sampled_at"][row], arrays["sampled_slots"][row] = end - 1, item.slot
                params = slot.params
                arrays["temperature"][row], arrays["top_k"][row] = params.temperature, params.top_k
                arrays["top_p"][row], arrays["min_p"][row] = params.top_p, params.min_p
                if params.temperature:
                    number = random_halves(slot.seed, item.before + item.num_tokens)
                    arrays["high"][row], arrays["low"][row] = number
            start = end
        return pack(shape, arrays)


def _entered(request: StepRequest, num_groups: int) -> _Slot:
    return _Slot(np.array(request.token_ids, np.int32), request.params, request.seed, [0] * num_groups)
