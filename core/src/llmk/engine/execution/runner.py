"""The runner: carries out step plans on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.api import AttentionBackend, CacheStep
from llmk.engine.device.batch import Batch, DraftRows, LaidOutStep
from llmk.engine.device.graphs import Decoded, DecodeGraphs
from llmk.engine.device.sample_rows import SampleRows
from llmk.engine.device.trace import NULL_TRACE, NullTrace
from llmk.engine.device.transfer import event, to_host
from llmk.engine.execution.executor import Executor
from llmk.engine.execution.pending_result import PendingResult
from llmk.engine.measuring.shadow_comparisons import ShadowComparisons
from llmk.engine.sampling import finite_check as finite
from llmk.engine.sampling.prompt_logprobs import PromptLogprobs
from llmk.engine.sampling.prompt_rows import HiddenReader
from llmk.engine.sampling.sampler import Sampled, Sampler
from llmk.engine.wire.step import StepPlan
from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk.api import Graphs
    from llmk.engine.sampling.logits_processors import LogitsProcessors
    from llmk.nn.build import Build
    from llmk.nn.model import Model
    from llmk.reference.batch import StepTensors


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """How a layer with a cache gets its part of a step: from its attention backend, or as it is for recurrent state.
    Layers whose way is equal share one result."""

    group: int
    backend: AttentionBackend | None

    def prepare(self, step: CacheStep) -> Any:
        """What the layer finds in :attr:`~llmk.nn.StepContext.meta`."""
        return step if self.backend is None else self.backend.prepare(step)


class Runner(Executor):
    """Model, cache, batch and sampler of one device.

    ``layers`` says, for each layer that keeps something, how it gets its part of a step; ``caches`` holds what it
    keeps it in (:class:`~llmk.nn.StepContext`). ``asynchronous`` is
    :attr:`llmk.engine.execution.executor.Executor.asynchronous`.
    """

    def __init__(
        self,
        model: Model,
        build: Build,
        batch: Batch,
        caches: list[Any],
        layers: Sequence[CachedLayer],
        processors: LogitsProcessors | None = None,
        *,
        asynchronous: str = "",
        trace: NullTrace = NULL_TRACE,
    ) -> None:
        self.model = model
        self.build = build
        self.batch = batch
        self.caches = caches
        self.asynchronous = asynchronous
        self._graphs: DecodeGraphs | None = None
        self._trace = trace
        self._prepares = list(dict.fromkeys(layers))
        self._layers = [self._prepares.index(layer) for layer in layers]
        self.sampler = Sampler(build, batch.tokens.shape[0], batch.device, processors)
        self.scorer = PromptLogprobs(model.logits, self.sampler.logprobs)
        self.reader = HiddenReader()
        shadows = build.shadows
        self._comparisons = ShadowComparisons(shadows, build.plan.dtype) if shadows is not None else None
        self._run = trace.on_device(batch.device, self._issue if shadows is None else self._issue_compared)
        self._apply = trace.timed("apply", batch.apply)
        self._lay_out = trace.timed("lay out", batch.lay_out)
        self._prepare = trace.timed("prepare", CachedLayer.prepare)
        self._forward = trace.timed("forward", model.forward)
        self._sample = trace.timed("sample", self.sampler)

    @torch.inference_mode()
    def record(self, graphs: Graphs, sizes: Sequence[int]) -> None:
        """Records steps of one token per request for ``sizes`` requests, which are replayed from then on."""
        self._graphs = DecodeGraphs(graphs, self._decode, sizes, self.build)
        self._replay = self._trace.timed("replay", self._graphs.replay)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingResult:
        """Issues a step: apply what changed, lay it out, run the model, sample. Does not wait for the device."""
        return self._run(plan)

    def _issue_compared(self, plan: StepPlan) -> PendingResult:
        """Issues a step in which kernels may be compared with their shadows. Such steps are not replayed."""
        assert self._comparisons is not None
        pending = self._issue(plan, replay=not self._comparisons.shadows.start_step())
        pending.compared = self._comparisons.issued()
        if pending.compared is not None:
            pending.done = event(self.batch.device)
        return pending

    def _issue(self, plan: StepPlan, replay: bool = True) -> PendingResult:
        self.sampler.update(plan.freed, plan.new, self.batch.tokens)
        self.scorer.update(plan.freed, plan.new)
        self.reader.update(plan.freed, plan.new)
        if not plan.work:
            return PendingResult(plan.step, None)
        self._apply(plan)
        if replay and self._graphs is not None and _decodes(plan, self._graphs.largest):
            return self._issue_recorded(plan)
        step = self._lay_out(plan)
        return self._finish(plan, step, self._compute(step.tensors, step.groups))

    def _compute(self, tensors: StepTensors, groups: Sequence[CacheStep]) -> Tensor:
        """The step's final hidden states."""
        self.build.select(tensors.token_ids.shape[0])
        meta = [self._prepare(layer, groups[layer.group]) for layer in self._prepares]
        context = StepContext(tensors.positions, self.caches, [meta[i] for i in self._layers])
        return self._forward(tensors.token_ids, context)

    def _decode(self, slots: Tensor, counts: Tensor) -> Decoded:
        """A step of one token per request, as it is recorded."""
        hidden = self._compute(*self.batch.place(slots, counts, slots.shape[0], 1, self.batch.max_len))
        logits = self.model.logits(hidden)
        token_ids = self.sampler.most_likely(logits)
        self.batch.append(slots, token_ids)
        return Decoded(hidden, logits, token_ids, finite.pack(token_ids, finite.chosen(logits, token_ids)))

    def _issue_recorded(self, plan: StepPlan) -> PendingResult:
        slots = [work.slot for work in plan.work]
        index, decoded = self._replay(slots)
        scored = self.scorer(decoded.hidden, plan.work)
        if self.sampler.all_plain_greedy(slots):
            sampled = Sampled(decoded.token_ids, decoded.readback, decoded.logits.dtype)
        else:
            rows = SampleRows(slots, index, self.batch.computed, [work.before + 1 for work in plan.work])
            sampled = self._sample(decoded.logits, rows, self.batch)
            self._keep(index, sampled.token_ids)
        done, items = event(self.batch.device), range(len(slots))
        return PendingResult(plan.step, sampled.to_host(), scored, done=done, items=items)

    def _finish(self, plan: StepPlan, step: LaidOutStep, hidden: Tensor) -> PendingResult:
        """Scores prompts, copies what is wanted of the final hidden states, and samples from them."""
        prompts = self.scorer(hidden, plan.work), self.reader(hidden, plan.work)
        if not step.sampled.slots:
            return PendingResult(plan.step, None, *prompts, event(self.batch.device))
        logits = self.model.logits(hidden[step.token_rows])
        sampled = self._sample(logits, step.sampled, self.batch)
        gained = self._keep(step.sampled.index, sampled.token_ids, step.drafts)
        pending = PendingResult(plan.step, sampled.to_host(), *prompts, items=plan.sampled_work)
        if gained is not None and step.drafts is not None:
            pending.gained, pending.counts = to_host(gained), step.drafts.host_counts
        pending.done = event(self.batch.device)
        return pending

    def _keep(self, slots: Tensor, token_ids: Tensor, drafts: DraftRows | None = None) -> Tensor | None:
        """Puts sampled tokens where the next step reads them: one for each of ``slots``, or where these are rows of
        ``drafts``, those up to the first rejected draft. Returns how many these are then (:meth:`Batch.accept`)."""
        if drafts is None:
            self.batch.append(slots, token_ids)
            return None
        return self.batch.accept(drafts, token_ids)


def _decodes(plan: StepPlan, most: int) -> bool:
    """Whether the plan's work is one token for each of at most ``most`` requests, all of which go on to sample."""
    return len(plan.work) <= most and all(work.num_tokens == 1 and work.sample for work in plan.work)
