"""An executor that computes each request by itself (that of a stranger's wheel), and ways to get it wrong."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from defects import Defect
from llmk.api import PendingTokens, Step, StepWork

sys.path.append(str(Path(__file__).parents[2] / "third_party/fjord/src"))

from llmk_fjord.gannet_executor import Done, PlainExecutor, Slot


class Good(PlainExecutor):
    """The stranger's."""


class KeepsSlots(Good):
    def submit(self, step: Step) -> PendingTokens:
        new = [request for request in step.new if request.slot not in self._slots]
        return super().submit(replace(step, freed=(), new=new))


class NoBlocks(Good):
    def _compute(self, work: StepWork) -> Tensor:
        return super()._compute(work if work.before == 0 else replace(work, new_blocks=()))


class IgnoresCached(Good):
    def _compute(self, work: StepWork) -> Tensor:
        slot = self._slots[work.slot]
        slot.tokens[: work.before] = [0] * work.before
        return super()._compute(work if work.num_tokens > 1 else replace(work, before=max(0, work.before - 1)))


class EveryWorkSamples(Good):
    def submit(self, step: Step) -> PendingTokens:
        return super().submit(replace(step, work=[replace(work, sample=True) for work in step.work]))


class WindowOff(Good):
    def _attention(self, x: Tensor, block: Any, kept: Any, slot: Slot, start: int, stop: int) -> Tensor:
        window = block.attend.window
        wide = block if window is None else replace(block, attend=replace(block.attend, window=window + 1))
        return super()._attention(x, wide, kept, slot, start, stop)


class FirstIsGreedy(Good):
    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        kept, slot.temperature = slot.temperature, 0 if work.num_tokens > 1 else slot.temperature
        try:
            return super()._draw(work, logits)
        finally:
            slot.temperature = kept


class _Changed(Good):
    changes: dict[str, Any]

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        for name, value in self.changes.items():
            setattr(slot, name, value)
        return super()._draw(work, logits)


class OneSeed(_Changed):
    changes = {"seed": 0}  # noqa: RUF012


class NoTopK(_Changed):
    changes = {"top_k": 0}  # noqa: RUF012


class NoTopP(_Changed):
    changes = {"top_p": 1.0}  # noqa: RUF012


class NoMinP(_Changed):
    changes = {"min_p": 0.0}  # noqa: RUF012


class OffIsOne(Good):
    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        slot.top_k = max(1, slot.top_k)
        return super()._draw(work, logits)


class OwnSeeds(Good):
    def _draw(self, work: StepWork, logits: Tensor) -> int:
        self._slots[work.slot].seed = int(torch.randint(1 << 40, ()))
        return super()._draw(work, logits)


class TakesNaN(Good):
    def submit(self, step: Step) -> PendingTokens:
        return Done(replace(super().submit(step).result(), broken=()))


CHUNKS = "with chunks, few blocks and slots"
SEEDS = "a seed gives the same tokens"
DRAWN = "tokens are drawn from those"
DEFECTS = (
    Defect("slots", "a request keeps its slot when it is preempted", KeepsSlots, CHUNKS),
    Defect("blocks", "blocks that are added later are not", NoBlocks, CHUNKS),
    Defect("before", "a decoded token is computed at the place before it", IgnoresCached, "with whole prompts"),
    Defect("samples", "work that samples nothing gets a token", EveryWorkSamples, CHUNKS),
    Defect("window", "the window has a token too many", WindowOff, "mistral with a window"),
    Defect("first", "the first token is the most likely one", FirstIsGreedy, DRAWN),
    Defect("one seed", "all requests have one seed", OneSeed, SEEDS),
    Defect("own seeds", "a request's seed is not looked at", OwnSeeds, SEEDS),
    Defect("top_k", "top_k is ignored", NoTopK, DRAWN),
    Defect("top_p", "top_p is ignored", NoTopP, DRAWN),
    Defect("min_p", "min_p is ignored", NoMinP, DRAWN),
    Defect("off", "a top_k that is off is 1", OffIsOne, DRAWN),
    Defect("nan", "NaN is not reported", TakesNaN, "logits that are NaN"),
)
