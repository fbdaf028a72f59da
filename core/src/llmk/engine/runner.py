"""The runner: carries out step plans on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from llmk.engine.batch import Batch
from llmk.engine.sampler import Sampled, Sampler
from llmk.engine.step import StepPlan, StepResult
from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.nn.model import Model


@dataclass(slots=True)
class Pending:
    """A step that was issued. Its tokens already stand where the next step reads them; :meth:`result` waits for the
    host's copy."""

    step: int
    sampled: Sampled | None

    def result(self) -> StepResult:
        """Waits for the device and returns what was sampled."""
        if self.sampled is None:
            return StepResult(step=self.step)
        token_ids = self.sampled.token_ids.tolist()
        return StepResult(
            step=self.step,
            slots=self.sampled.slots,
            token_ids=token_ids,
            logprobs=self.sampled.logprobs_by_slot(token_ids),
        )


class Runner:
    """Model, cache, batch and sampler of one device.

    ``caches`` holds each layer's cache tensor, laid out as its attention backend says; ``sites`` maps an attention site
    to its cache group.
    """

    def __init__(self, model: Model, build: Build, batch: Batch, caches: list[torch.Tensor], sites: dict[str, int]):
        self.model = model
        self.build = build
        self.batch = batch
        self.caches = caches
        self.sites = sites
        self.backends = {site: build.attention(site) for site in sites}
        self.sampler = Sampler(build, batch.tokens.shape[0], batch.device)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> Pending:
        """Issues a step: apply what changed, lay it out, run the model, sample. Does not wait for the device."""
        self.sampler.enter(plan.new)
        self.batch.apply(plan)
        step = self.batch.lay_out(plan)
        self.build.select(step.tensors.token_ids.shape[0])
        meta = {site: self.backends[site].prepare(step.attention[group]) for site, group in self.sites.items()}
        context = StepContext(positions=step.tensors.positions, attention=meta, caches=self.caches)
        hidden = self.model.forward(step.tensors.token_ids, context)
        if not step.sample_slots:
            return Pending(plan.step, None)
        logits = self.model.logits(hidden[step.sample_rows])
        slots = step.slots[step.sample_indices]
        sampled = self.sampler(logits, step.sample_slots, slots, self.batch)
        self.batch.append(slots, sampled.token_ids)
        return Pending(plan.step, sampled)
