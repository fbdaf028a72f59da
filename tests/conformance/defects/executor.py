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
from llmk.reference.rope.rotation import cos_sin_cache

sys.path.append(str(Path(__file__).parents[2] / "third_party/fjord/src"))

from llmk_fjord.gannet_executor import Done, PlainExecutor, Slot

from llmk_testing.suites.executor_driven import Work


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


class NoTemperature(Good):
    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        slot.temperature = min(1, slot.temperature * 1e9)
        return super()._draw(work, logits)


class FirstOfStep(Good):
    """All are sampled as the first is."""

    def submit(self, step: Step) -> PendingTokens:
        self.first = step.work[0].slot if step.work else 0
        return super().submit(step)

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot, first = self._slots[work.slot], self._slots[self.first]
        slot.temperature, slot.top_k, slot.top_p = first.temperature, first.top_k, first.top_p
        return super()._draw(work, logits)


class KeepsParameters(Good):
    """What was asked for in a slot holds for the next one there."""

    def submit(self, step: Step) -> PendingTokens:
        for number in step.freed:
            self.kept = {**getattr(self, "kept", {}), number: self._slots[number].temperature}
        return super().submit(step)

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        slot.temperature = getattr(self, "kept", {}).get(work.slot, slot.temperature)
        return super()._draw(work, logits)


class SamePosition(Good):
    """Each position has the same random number."""

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot, position = self._slots[work.slot], work.before + work.num_tokens
        tokens = slot.tokens[:position]
        token = super()._draw(Work(work.slot, before=0, num_tokens=1), logits)
        slot.tokens[:] = [*tokens, token]
        return token


class ShiftedSeeds(SamePosition):
    """The next position has what the next seed has at this one."""

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot, moved = self._slots[work.slot], work.before + work.num_tokens
        slot.seed += moved
        token = super()._draw(work, logits)
        slot.seed -= moved
        return token


class SlotSeeds(Good):
    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        slot.seed += work.slot
        token = super()._draw(work, logits)
        slot.seed -= work.slot
        return token


class KeysAlone(Good):
    """Counts half of what a block has."""

    def _spec(self, attend: Any) -> Any:
        spec = super()._spec(attend)
        return replace(spec, page_bytes=spec.page_bytes // 2)


class WideCache(Good):
    """Allocates float32, no matter the dtype of the cache."""

    def allocate(self, num_blocks: int, groups: Any) -> None:
        super().allocate(num_blocks, groups)
        for kept in self._kept:
            kept.keys, kept.values = kept.keys.float(), kept.values.float()


class AllMemory(Good):
    def available(self) -> int:
        return 1 << 50


class ClosesOnce(Good):
    def close(self) -> None:
        if self._closed:
            raise RuntimeError("it is closed")
        super().close()


class TakesInfinite(Good):
    def _compute(self, work: StepWork) -> Tensor:
        logits = super()._compute(work)
        return torch.where(logits.isinf(), logits.sign() * 1e30, logits)


class NamesSlots(Good):
    def submit(self, step: Step) -> PendingTokens:
        found = super().submit(step).result()
        slots = [work.slot for work in step.work if work.sample]
        return Done(replace(found, broken=tuple(slots[row] for row in found.broken)))


class KeepsTables(Good):
    """Block tables are the engine's own lists."""

    def submit(self, step: Step) -> PendingTokens:
        pending = super().submit(step)
        for request in step.new:
            self._slots[request.slot].tables = request.block_ids  # type: ignore[assignment]
        return pending


class NoBias(Good):
    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self._weights.items():
            if isinstance(value, tuple):
                self._weights[name] = (value[0], None)


class PlainRotation(Good):
    """Does not scale positions as the checkpoint says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for turn in self._ropes:
            base = turn.parameters["rope_theta"]
            own = {"rope_type": "default", "rope_theta": base}
            self._ropes[turn] = cos_sin_cache(own, turn.dim, self.context.max_model_len, base)


class ShortRotation(Good):
    """Lacks the last position that is computed: the one behind it has a token that ends the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ropes = {turn: table[:-2] for turn, table in self._ropes.items()}


class TakesNaN(Good):
    def submit(self, step: Step) -> PendingTokens:
        return Done(replace(super().submit(step).result(), broken=()))


CHUNKS = "with chunks, few blocks and slots"
SEEDS = "a seed gives the same tokens"
DRAWN = "tokens are drawn from those"


class NoCap(Good):
    """Scores of attention are not capped."""

    def _attention(self, x: Tensor, block: Any, kept: Any, slot: Slot, start: int, stop: int) -> Tensor:
        plain = replace(block, attend=replace(block.attend, softcap=None))
        return super()._attention(x, plain, kept, slot, start, stop)


class NoLogitCap(Good):
    """Nor are logits, which greedy tokens don't show."""

    def __post_init__(self) -> None:
        super().__post_init__()
        query = self.context.query
        tree = replace(query.tree, head=replace(query.tree.head, softcap=None))
        self.context = replace(self.context, query=replace(query, tree=tree))


class SeedsTogether(Good):
    """Seeds count where all requests of the batch draw tokens."""

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot = self._slots[work.slot]
        kept = slot.seed
        if any(other.temperature == 0 for other in self._slots.values()):
            slot.seed = int(torch.randint(1 << 40, ()))
        try:
            return super()._draw(work, logits)
        finally:
            slot.seed = kept


DEFECTS = (
    Defect("no_cap", "scores of attention are not capped", NoCap, "gemma2: greedy tokens are those"),
    Defect("no_logit_cap", "logits are not capped", NoLogitCap, "as likely as the temperature"),
    Defect("seeds_together", "a seed counts where all of a batch draw", SeedsTogether, "don't depend on the batch"),
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
    Defect("infinite", "infinite logits are not reported", TakesInfinite, "logits that are infinite"),
    Defect("names_slots", "of broken requests the slots are named", NamesSlots, "those with NaN are named"),
    Defect("no_temperature", "all are drawn at temperature 1", NoTemperature, "as the temperature says"),
    Defect("first_of_step", "all of a step are sampled as the first is", FirstOfStep, "by its own parameters"),
    Defect("keeps_parameters", "a slot keeps its sampling parameters", KeepsParameters, "by its own parameters"),
    Defect("same_position", "a seed draws the same at each position", SamePosition, "new at each position"),
    Defect("shifted_seeds", "a seed draws what the one before draws next", ShiftedSeeds, "new at each position"),
    Defect("slot_seeds", "a seed draws others in another slot", SlotSeeds, "new at each position"),
    Defect("keys_alone", "values are not counted among a block's bytes", KeysAlone, "memory is counted"),
    Defect("wide_cache", "the cache is always of float32", WideCache, "memory is counted"),
    Defect("all_memory", "more memory is available than is free", AllMemory, "memory is counted"),
    Defect("closes_once", "closing twice raises", ClosesOnce, "memory is counted"),
    Defect("keeps_tables", "block tables are the engine's own lists", KeepsTables, "steps may follow"),
    Defect("no_bias", "biases of linear layers are dropped", NoBias, "qwen2 in several files"),
    Defect("plain_rotation", "the rotation is not scaled", PlainRotation, "with scaled rotation"),
    Defect("short_rotation", "the last position has no rotation", ShortRotation, "with whole prompts"),
)
