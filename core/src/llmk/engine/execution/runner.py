"""The runner: carries out step plans on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from llmk.api import AttentionBackend, CacheStep
from llmk.engine.device.batch import Batch, DraftRows, LaidOutStep
from llmk.engine.device.given_rows import GivenRows
from llmk.engine.device.graphs import ADAPTERS, PLAIN, Recorded, StepGraphs, StepShape, Variant
from llmk.engine.device.host_rows import HostRows
from llmk.engine.device.sample_rows import SampleRows
from llmk.engine.device.trace import NULL_TRACE, NullTrace
from llmk.engine.device.transfer import bits_to_device, event, to_device, to_host
from llmk.engine.execution.executor import Executor
from llmk.engine.execution.head_drafts import HeadDrafts
from llmk.engine.execution.pending_result import PendingResult
from llmk.engine.measuring.shadow_comparisons import ShadowComparisons
from llmk.engine.sampling import finite_check as finite
from llmk.engine.sampling.prompt_logprobs import PromptLogprobs
from llmk.engine.sampling.prompt_rows import HiddenReader
from llmk.engine.sampling.sampler import Sampled, Sampler
from llmk.engine.wire.step import Masks, StepPlan
from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk.api import Graphs, HeadSpeculator
    from llmk.engine.sampling.logits_processors import LogitsProcessors
    from llmk.nn.build import Build
    from llmk.nn.context import GivenEmbeddings
    from llmk.nn.model import HeadedModel, Model
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
        self._graphs: StepGraphs | None = None
        self._heads: HeadDrafts | None = None
        self._unsampled: tuple[Tensor, SampleRows, DraftRows | None, PendingResult] | None = None
        """Logits and rows of a deferred step."""
        self._trace = trace
        self._prepares = list(dict.fromkeys(layers))
        self._layers = [self._prepares.index(layer) for layer in layers]
        self.sampler = Sampler(build, batch.tokens.shape[0], batch.device, processors)
        self.scorer = PromptLogprobs(model.logits, self.sampler.logprobs)
        self.reader = HiddenReader(model.logits)
        self._given = GivenRows(batch.device, build.dtype)
        shadows = build.shadows
        self._comparisons = ShadowComparisons(shadows, build.plan.dtype) if shadows is not None else None
        self._run = trace.on_device(batch.device, self._issue if shadows is None else self._issue_compared)
        self._apply = trace.timed("apply", batch.apply)
        self._lay_out = trace.timed("lay out", batch.lay_out)
        self._prepare = trace.timed("prepare", CachedLayer.prepare)
        self._forward = trace.timed("forward", model.forward)
        self._sample = trace.timed("sample", self.sampler)

    def draft_by_heads(self, speculator: HeadSpeculator) -> None:
        """Has ``speculator`` draft by heads of the model, which has some."""
        own = cast("HeadedModel", self.model), self.build, self.batch
        self._heads = HeadDrafts(speculator, *own, self.sampler.most_likely, self._context)
        self.batch.propose = self._heads.propose

    @torch.inference_mode()
    def record(self, graphs: Graphs, shapes: Sequence[StepShape], later: Sequence[StepShape] = ()) -> None:
        """Records steps of ``shapes``, which are replayed from then on; those of ``later`` once there is time
        (:attr:`~llmk.engine.wire.step.StepPlan.record`)."""
        self._graphs = StepGraphs(graphs, self._recorded, shapes, self.build, later)
        self._decode = self._trace.timed("replay", self._graphs.decode)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingResult:
        """Issues a step: apply what changed, lay it out, run the model, sample. Does not wait for the device."""
        return self._run(plan)

    @torch.inference_mode()
    def sample(self, masks: Masks) -> None:
        """Samples the deferred step that was submitted last. Does not wait for the device."""
        if self._unsampled is None:
            return  # another stage does
        (logits, rows, drafts, pending), self._unsampled = self._unsampled, None
        device, found = self.batch.device, None
        if masks.rows:
            found = to_device(masks.rows, device), bits_to_device(masks.bits, len(masks.rows), device)
        self._keep_sampled(pending, self._sample(logits, rows, self.batch, found), rows, drafts)
        if self._heads is not None:
            self._heads.follow()

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
        self._given.update(plan.freed, plan.new)
        if not plan.work:
            left = self._graphs.record_next() if plan.record and self._graphs is not None else 0
            return PendingResult(plan.step, None, unrecorded=left)
        if self.build.position_tables:
            self.build.reach(max(work.before + work.num_tokens for work in plan.work))
        self._apply(plan)
        if self._heads is None:
            return self._computed(plan, replay)
        self._heads.start(plan)
        pending = self._computed(plan, replay)
        if self._unsampled is None:
            self._heads.follow()
        return pending

    def _computed(self, plan: StepPlan, replay: bool) -> PendingResult:
        """Issues a step that was applied, recorded or not."""
        given = self._given.of(plan.work)
        has_tails = plan.speculative and self.batch.accepted is not None  # no recorded step has these, or embeddings
        if replay and self._graphs is not None and not has_tails and given is None:
            if all(work.num_tokens == 1 and work.sample for work in plan.work):
                if len(plan.work) <= self._graphs.most_decoding(self._variant(plan)):
                    return self._replayed_decode(plan)
            elif (pending := self._replayed(plan)) is not None:
                return pending
        step = self._lay_out(plan)
        rows = self._output_rows(plan, step)
        hidden = self._compute(step.tensors, step.groups, step.adapter_index, given, rows)
        self._take(hidden)
        return self._finish(plan, step, hidden, rows is None)

    def _compute(
        self,
        tensors: StepTensors,
        groups: Sequence[CacheStep],
        adapter_index: Tensor | None,
        given: GivenEmbeddings | None = None,
        output_rows: Tensor | None = None,
    ) -> Tensor:
        """The step's final hidden states, of all tokens or at ``output_rows``."""
        self.build.select(tensors.token_ids.shape[0])
        self.build.adapter_index = adapter_index
        context = self._context(tensors.positions, groups)
        context.given, context.output_rows = given, output_rows
        return self._forward(tensors.token_ids, context)

    def _context(self, positions: Tensor, groups: Sequence[CacheStep]) -> StepContext:
        meta = [self._prepare(layer, groups[layer.group]) for layer in self._prepares]
        return StepContext(positions, self.caches, [meta[i] for i in self._layers])

    def _take(self, hidden: Tensor) -> None:
        if self._heads is not None:
            self._heads.take(hidden)

    def _output_rows(self, plan: StepPlan, step: LaidOutStep) -> Tensor | None:
        """The rows that are sampled, where no others of the step's hidden states are used; ``None``: all are needed, or
        so many that nothing is gained. A step that samples none has one, since kernels need not take 0 rows."""
        few = 2 * len(step.sampled.slots) <= plan.num_tokens and plan.num_tokens > 1 and self._heads is None
        if not few or self.scorer.follows(plan.work) or self.reader.follows(plan.work):
            return None
        return step.token_rows if step.sampled.slots else step.tensors.query_start[:1].long()

    def _recorded(self, shape: StepShape, slots: Tensor, counts: Tensor, samples: Tensor) -> Recorded:
        """A step of fixed shape, as it is recorded (:data:`llmk.engine.device.graphs.Run`)."""
        tensors, hidden = self._recorded_hidden(shape, slots, counts)
        if shape.decodes:
            logits = self.model.logits(hidden)
        else:
            column = torch.arange(shape.samples, device=slots.device)
            rows = (tensors.query_start[1:] - samples)[:, None] + column
            logits = self.model.logits(hidden[torch.where(column < samples[:, None], rows, 0).view(-1)])
            slots = slots.masked_fill(samples == 0, -1)
        token_ids = self.sampler.most_likely(logits)
        if shape.samples == 1:
            self.batch.append(slots, token_ids)
        return Recorded(hidden, logits, token_ids, finite.pack(token_ids, finite.chosen(logits, token_ids)))

    def _recorded_hidden(self, shape: StepShape, slots: Tensor, counts: Tensor) -> tuple[StepTensors, Tensor]:
        """Such a step as it is laid out, and its final hidden states."""
        longest = 1 if shape.decodes else shape.tokens
        tensors, groups = self.batch.place(slots, counts, shape.tokens, longest, self.batch.max_len)
        adapters = self.batch.adapter_index(slots, tensors.rows) if "adapters" in shape.variant else None
        return tensors, self._compute(tensors, groups, adapters)

    def _variant(self, plan: StepPlan) -> Variant:
        return ADAPTERS if self.batch.has_adapters(plan) else PLAIN

    def _replayed_decode(self, plan: StepPlan) -> PendingResult:
        """A recorded step in which each request computes one token."""
        slots = [work.slot for work in plan.work]
        index, recorded = self._decode(slots, self._variant(plan))
        self._take(recorded.hidden)
        scored = self.scorer(recorded.hidden, plan.work)
        pending = PendingResult(plan.step, None, scored, items=range(len(slots)))
        if self.sampler.all_plain_greedy(slots) and not plan.deferred:
            self._pass_on(recorded.token_ids)
            pending.sampled = Sampled(recorded.token_ids, recorded.readback, recorded.logits.dtype).to_host()
            pending.done = event(self.batch.device)
            return pending
        fewest, most = None, [work.before + 1 for work in plan.work]
        if plan.speculative:
            fewest = [bound - work.num_uncertain for bound, work in zip(most, plan.work, strict=True)]
        rows = SampleRows(slots, index, self.batch.computed, most, fewest)
        if plan.deferred:
            return self._defer(recorded.logits, rows, None, pending)
        return self._keep_sampled(pending, self._sample(recorded.logits, rows, self.batch), rows, None)

    def _replayed(self, plan: StepPlan) -> PendingResult | None:
        """A recorded step that is not for decoding alone; ``None`` where none has the shape. Drafts are verified in
        steps without prompts alone, as the others have one sample per request."""
        assert self._graphs is not None
        samples = [work.sample + work.num_drafts for work in plan.work]
        width = max(1, *samples)
        if width > 1 and not all(samples):
            return None
        graph = self._graphs.find(plan.num_tokens, len(plan.work), width, self._variant(plan))
        if graph is None:
            return None
        self.batch.draft(plan)
        counts = [work.num_tokens for work in plan.work]
        _, recorded = self._graphs.run(graph, [work.slot for work in plan.work], counts, samples)
        self._take(recorded.hidden)
        prompts = self.scorer(recorded.hidden, plan.work), self.reader(recorded.hidden, plan.work)
        host, room = HostRows.of(plan), graph.shape.samples
        if not host.slots:
            return PendingResult(plan.step, None, *prompts, event(self.batch.device))
        rows, drafts = self.batch.sample_rows(plan, host)
        at = [item * room + row for item, count in zip(host.items, host.counts, strict=True) for row in range(count)]
        recorded = recorded.rows(to_device(at, self.batch.device))
        pending = PendingResult(plan.step, None, *prompts, items=host.items)
        drafts = drafts if plan.speculative else None
        if plan.deferred:
            return self._defer(recorded.logits, rows, drafts, pending)
        if self.sampler.all_plain_greedy(rows.slots):
            sampled = Sampled(recorded.token_ids, recorded.readback, recorded.logits.dtype)
        else:
            sampled = self._sample(recorded.logits, rows, self.batch)
        return self._keep_sampled(pending, sampled, rows, drafts)

    def _finish(self, plan: StepPlan, step: LaidOutStep, hidden: Tensor, whole: bool) -> PendingResult:
        """Scores prompts, copies what is wanted of the final hidden states, and samples from them. ``hidden`` has all
        tokens if it is ``whole``, otherwise the sampled ones."""
        scored = self.scorer(hidden, plan.work) if whole else ()
        read = self.reader(hidden, plan.work) if whole else ()
        if not step.sampled.slots:
            return PendingResult(plan.step, None, scored, read, event(self.batch.device))
        logits = self.model.logits(hidden[step.token_rows] if whole else hidden)
        pending = PendingResult(plan.step, None, scored, read, items=plan.sampled_work)
        if plan.deferred:
            return self._defer(logits, step.sampled, step.drafts, pending)
        sampled = self._sample(logits, step.sampled, self.batch)
        return self._keep_sampled(pending, sampled, step.sampled, step.drafts)

    def _defer(
        self, logits: Tensor, rows: SampleRows, drafts: DraftRows | None, pending: PendingResult
    ) -> PendingResult:
        """Leaves a step to :meth:`sample`."""
        self._unsampled = logits, rows, drafts, pending
        return pending

    def _keep_sampled(
        self, pending: PendingResult, sampled: Sampled, rows: SampleRows, drafts: DraftRows | None
    ) -> PendingResult:
        """Puts what was sampled where the next step reads it, and on its way to the host."""
        gained = self._keep(rows.index, sampled.token_ids, drafts)
        self._pass_on(sampled.token_ids, drafts)
        pending.sampled = sampled.to_host()
        if gained is not None and drafts is not None:
            pending.gained, pending.counts = to_host(gained), drafts.host_counts
        pending.done = event(self.batch.device)
        return pending

    def _keep(self, slots: Tensor, token_ids: Tensor, drafts: DraftRows | None = None) -> Tensor | None:
        """Puts sampled tokens where the next step reads them: one for each of ``slots``, or where these are rows of
        ``drafts``, those up to the first rejected draft. Returns how many these are then (:meth:`Batch.accept`)."""
        if drafts is None:
            self.batch.append(slots, token_ids)
            return None
        return self.batch.accept(drafts, token_ids)

    def _pass_on(self, token_ids: Tensor, drafts: DraftRows | None = None) -> None:
        """Called with what was sampled, once it stands there."""
