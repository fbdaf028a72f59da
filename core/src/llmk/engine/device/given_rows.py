"""Embeddings that prompts have in place of tokens: on the host until a step computes their positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.engine.device.transfer import has_pinned_memory, to_device
from llmk.engine.wire.prompt import EmbeddingRun
from llmk.engine.wire.step import NewRequest, Work
from llmk.nn.context import GivenEmbeddings


@dataclass(frozen=True, slots=True)
class _Run:
    """Embeddings ``[length, size]`` of positions from ``start`` on."""

    start: int
    rows: Tensor

    @classmethod
    def of(cls, run: EmbeddingRun, dtype: torch.dtype) -> _Run:
        values = torch.frombuffer(bytearray(run.data), dtype=getattr(torch, run.dtype))
        return cls(run.start, values.view(run.length, -1).to(dtype))


class GivenRows:
    """The embeddings of the requests in a batch, in ``dtype``. They are sent to ``device`` by the step that needs them,
    and kept no longer. All stages have them, since no recorded step does."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._runs: dict[int, list[_Run]] = {}
        """Of slots that have any."""

    def update(self, freed: Sequence[int], new: Sequence[NewRequest]) -> None:
        """Forgets requests that left the batch, then takes note of those that entered it."""
        for slot in (*freed, *(request.slot for request in new)) if self._runs else ():
            self._runs.pop(slot, None)
        for request in new:
            if request.embeddings:
                self._runs[request.slot] = [_Run.of(run, self._dtype) for run in request.embeddings]

    def of(self, work: Sequence[Work]) -> GivenEmbeddings | None:
        """Those of a step's tokens; ``None``: none."""
        parts = list(self._parts(work)) if self._runs else []
        if not parts:
            return None
        index = to_device([at for first, rows in parts for at in range(first, first + len(rows))], self._device)
        rows = torch.cat([rows for _, rows in parts])
        rows = rows.pin_memory() if has_pinned_memory(self._device) else rows
        return GivenEmbeddings(index, rows.to(self._device, non_blocking=True))

    def _parts(self, work: Sequence[Work]) -> Iterator[tuple[int, Tensor]]:
        """Rows of consecutive tokens of the step, and the first one's number. No draft is among a prompt's tokens, so
        that ``before`` is exact."""
        row = 0
        for item in work:
            end = item.before + item.num_tokens
            for run in self._runs.get(item.slot, ()):
                first, stop = max(item.before, run.start), min(end, run.start + len(run.rows))
                if first < stop:
                    yield row + first - item.before, run.rows[first - run.start : stop - run.start]
            if item.slot in self._runs:
                self._runs[item.slot] = left = [run for run in self._runs[item.slot] if run.start + len(run.rows) > end]
                if not left:
                    del self._runs[item.slot]
            row += item.num_tokens
