"""Drafts by heads of the model: their caches are filled after each step, and the next one drafts by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.engine.device.transfer import to_device

if TYPE_CHECKING:
    from llmk.api import CacheStep, HeadSpeculator
    from llmk.engine.device.batch import Batch
    from llmk.engine.wire.step import StepPlan, Work
    from llmk.nn.build import Build
    from llmk.nn.context import StepContext
    from llmk.nn.model import HeadedModel

_AT_ONCE = 256
"""Rows whose logits are computed at a time."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tokens that heads compute, as they are laid out."""

    context: StepContext
    adapter_index: Tensor | None


class HeadDrafts:
    """Follows ``llmk.api.DraftHeads`` for the model of one runner, and keeps a hidden state of each slot.

    Steps are laid out again for the heads, from the lengths before them: what a recorded step was laid out as is not
    kept.

    Args:
        most_likely: from logits ``[rows, vocab]`` to int64 ``[rows]``.
        context: from positions, and what each cache group has of a step, to what layers get of it.
    """

    def __init__(
        self,
        speculator: HeadSpeculator,
        model: HeadedModel,
        build: Build,
        batch: Batch,
        most_likely: Callable[[Tensor], Tensor],
        context: Callable[[Tensor, Sequence[CacheStep]], StepContext],
    ) -> None:
        self.count = len(model.ahead)
        self._speculator, self._model, self._build, self._batch = speculator, model, build, batch
        self._most_likely, self._context = most_likely, context
        self._kept: Tensor | None = None
        """``[slots, hidden]``: what the speculator returned for the last row of each slot's request."""
        self._step: tuple[StepPlan, Tensor] | None = None
        """The step whose rows are to follow, and ``batch.computed`` before it."""
        self._hidden: Tensor | None = None
        self._drafting: tuple[Tensor, Tensor, Sequence[Work]] | None = None

    def start(self, plan: StepPlan) -> None:
        """Takes note of a step that is to be issued."""
        self._step, self._hidden = (plan, self._batch.computed.clone()), None

    def take(self, hidden: Tensor) -> None:
        """Takes that step's final hidden states, ``[rows, hidden]``: a row for each token, then padding."""
        self._hidden = hidden

    def follow(self) -> None:
        """Fills the heads' caches, once the step has sampled."""
        if self._step is None or self._hidden is None:
            return
        (plan, before), hidden, batch = self._step, self._hidden, self._batch
        work, num_tokens = plan.work, plan.num_tokens
        slots = self._upload([each.slot for each in work])
        counts = self._upload([each.num_tokens for each in work])
        starts = before[slots]
        most = max(each.num_tokens for each in work), max(each.before + each.num_tokens for each in work)
        self._build.select(num_tokens)
        tensors, groups = batch.place(slots, counts, num_tokens, *most, computed=before)
        if not any(each.num_uncertain for each in work):
            for group in groups:
                group.host_query_lens = [each.num_tokens for each in work]
                group.host_seq_lens = [each.before + each.num_tokens for each in work]
        behind = tensors.positions[:, None] + torch.arange(1, self.count + 1, device=batch.device)
        following = batch.tokens[slots[tensors.rows][:, None], behind.clamp(max=batch.max_len - 1)].long()
        adapters = batch.adapter_index(slots, tensors.rows) if batch.has_adapters(plan) else None
        rows = _Rows(self._context(tensors.positions, groups), adapters)
        found = self._speculator.follow(self, hidden[:num_tokens], following, rows)
        self._keep(slots, found[tensors.query_start[:-1] + batch.computed[slots] - 1 - starts])
        self._step = self._hidden = None

    def propose(self, known: Tensor, slots: Tensor, works: Sequence[Work]) -> Tensor:
        """Drafts for requests, as :data:`llmk.engine.device.batch.Propose` says."""
        assert self._kept is not None, "requests draft after a step that computed their last token but one"
        self._drafting = known, slots, works
        return self._speculator.propose(self, self._kept[slots], [work.num_drafts for work in works])

    def __call__(self, head: int, hidden: Tensor, following: Tensor, rows: _Rows) -> Tensor:
        self._build.select(hidden.shape[0])
        self._build.adapter_index = rows.adapter_index
        given = following >= self._batch.vocab_size  # positions whose embeddings a prompt gave
        return self._model.ahead[head](hidden, following.masked_fill(given, 0), rows.context)

    def most_likely(self, hidden: Tensor) -> Tensor:
        found = []
        for part in hidden.split(_AT_ONCE):
            self._build.select(part.shape[0])
            found.append(self._most_likely(self._model.logits(part)))
        return torch.cat(found)

    def rows(self, count: int, ahead: int) -> _Rows:
        assert self._drafting is not None, "these are rows of requests that drafts are proposed for"
        known, slots, works = self._drafting
        slots, works = slots[:count], works[:count]
        batch, lengths = self._batch, self._batch.computed.clone()
        lengths[slots] = known[:count] - 2 + ahead
        self._build.select(count)
        longest = max(work.before + work.num_tokens for work in works)
        tensors, groups = batch.place(slots, torch.ones_like(slots), count, 1, longest, computed=lengths)
        if not any(work.num_uncertain for work in works):
            for group in groups:
                group.host_query_lens = [1] * count
                group.host_seq_lens = [work.before + work.num_tokens - work.num_drafts - 1 + ahead for work in works]
        adapters = None if batch.adapters is None else batch.adapters[slots]
        return _Rows(self._context(tensors.positions, groups), adapters)

    def _keep(self, slots: Tensor, hidden: Tensor) -> None:
        if self._kept is None:
            self._kept = hidden.new_zeros(self._batch.tokens.shape[0], hidden.shape[1])
        self._kept[slots] = hidden

    def _upload(self, values: Sequence[int]) -> Tensor:
        return to_device(values, self._batch.device)
