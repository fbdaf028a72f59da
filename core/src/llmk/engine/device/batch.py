"""The batch: what the device keeps of every running request from one step to the next. A step plan changes it; nothing
rebuilds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.api import CacheStep, DeviceSpeculator, DraftTails
from llmk.engine.device.host_rows import HostRows
from llmk.engine.device.sample_rows import SampleRows
from llmk.engine.device.transfer import to_device
from llmk.engine.device.zeros import zeros
from llmk.engine.wire.step import NewRequest, StepPlan, Work

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.reference.batch import StepTensors


Propose = Callable[[Tensor, Tensor, Sequence[Work]], Tensor]
"""Drafts for the requests of some work, the one with the most drafts first: from int64 ``[requests]``, how many tokens
of each are known, and the slots, to int64 ``[requests, drafts]``, as :class:`~llmk.api.DeviceSpeculator` has it."""


@dataclass(frozen=True, slots=True)
class DraftRows:
    """How sampled rows belong to requests: request ``i`` of ``slots`` has the ``counts[i]`` rows from ``starts[i]`` on,
    all but one for its drafts. int64 ``[requests]`` on the device; ``host_counts`` is ``counts`` on the host."""

    host_counts: list[int]
    slots: Tensor
    starts: Tensor
    counts: Tensor


@dataclass(slots=True)
class LaidOutStep:
    """A step on the device, ready for the model. ``groups`` has one entry per cache group; ``drafts`` is ``None`` where
    the step verifies none."""

    tensors: StepTensors
    groups: list[CacheStep]
    token_rows: Tensor
    """int64 ``[samples]``: the token rows whose logits are wanted."""
    sampled: SampleRows
    drafts: DraftRows | None = None
    adapter_index: Tensor | None = None
    """As ``llmk.nn.Build`` has it."""


class Batch:
    """Persistent device tensors, one row (*slot*) per running request.

    Attributes:
        propose: what drafts on the device, where anything does.
        tokens: int32 ``[slots, max_len + 1]``, prompt and output tokens.
        computed: int64 ``[slots]``, how many of them are in the cache.
        block_tables: int32 ``[slots, max_blocks]`` per cache group.
        adapters: int64 ``[slots]``, the number of each request's adapter, -1 for none; ``None`` where there are none.
        accepted: int64 ``[slots]``, accepted drafts of each request's last step, which recurrent states lack; ``None``
            where there are no such states, or no drafts.
    """

    def __init__(
        self,
        build: Build,
        *,
        num_slots: int,
        max_len: int,
        block_sizes: Sequence[int],
        device: torch.device,
        speculator: DeviceSpeculator | None = None,
        vocab_size: int = 0,
        adapters: bool = False,
        tails: bool = False,
    ) -> None:
        """``speculator`` drafts tokens below ``vocab_size`` where a plan says how many, but not which. ``adapters``:
        requests may have some. ``tails``: recurrent layers have tails (:class:`~llmk.api.DraftTails`)."""
        self.device = device
        self.vocab_size = vocab_size
        self.propose: Propose | None = None
        if speculator is not None:
            self.draft_by(speculator)
        self.block_sizes = tuple(block_sizes)
        self.tokens = zeros((num_slots, max_len + 1), torch.int32, device)
        self.computed = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.adapters = torch.full_like(self.computed, -1) if adapters else None
        self._host_adapters = [0] * num_slots
        self.accepted = torch.zeros_like(self.computed) if tails else None
        widths = [-(-(max_len + 1) // size) for size in block_sizes]
        self.block_tables = [torch.zeros(num_slots, width, dtype=torch.int32, device=device) for width in widths]
        self._update_rows = build.kernel("op", "update_rows")
        self._build_step = build.kernel("op", "build_step")
        self._compute_slot_mapping = build.kernel("op", "compute_slot_mapping")
        self._append_tokens = build.kernel("op", "append_tokens")
        self._accept_drafts = build.kernel("op", "accept_drafts")
        self._host_blocks = [[0] * num_slots for _ in block_sizes]

    def apply(self, plan: StepPlan) -> None:
        """Updates the tensors with the plan's changes."""
        if plan.new:
            self._enter(plan.new)
        for group, table in enumerate(self.block_tables):
            self._grow(group, table, plan)
        if drafted := [work for work in plan.work if work.drafts]:
            self._write_drafts(drafted)

    def lay_out(self, plan: StepPlan) -> LaidOutStep:
        """Lays out the plan's work on the device and counts it as computed."""
        counts = [work.num_tokens for work in plan.work]
        slots = [work.slot for work in plan.work]
        lengths = [work.before + work.num_tokens for work in plan.work]
        ends, sampled = list(accumulate(counts)), plan.sampled_work
        if plan.speculative:
            return self._lay_out_drafts(plan, slots, counts, ends, max(lengths))
        row_slots, token_rows = [slots[i] for i in sampled], [ends[i] - 1 for i in sampled]
        device_slots, device_counts, device_rows, index = self._upload(slots, counts, token_rows, row_slots)
        tensors, groups = self.place(device_slots, device_counts, ends[-1], max(counts), max(lengths))
        for group in groups:
            group.host_query_lens, group.host_seq_lens = counts, lengths
        rows = SampleRows(row_slots, index, self.computed, [lengths[i] for i in sampled])
        adapters = self.adapter_index(device_slots, tensors.rows) if self.has_adapters(plan) else None
        return LaidOutStep(tensors, groups, device_rows, rows, adapter_index=adapters)

    def has_adapters(self, plan: StepPlan) -> bool:
        """Whether any request of a step has an adapter."""
        return self.adapters is not None and any(self._host_adapters[work.slot] for work in plan.work)

    def adapter_index(self, slots: Tensor, rows: Tensor) -> Tensor:
        """int64 ``[tokens]``: the number of each token's adapter, -1 for none. ``slots`` are those of the step's
        requests, ``rows`` the request of each token, both -1 for padding."""
        assert self.adapters is not None
        return torch.where(rows < 0, -1, self.adapters[slots][rows])

    def _lay_out_drafts(
        self, plan: StepPlan, slots: list[int], counts: list[int], ends: list[int], longest: int
    ) -> LaidOutStep:
        """As :meth:`lay_out`, for a step in which requests may be sampled at several rows, or whose lengths may be
        upper bounds."""
        self.draft(plan)
        host = HostRows.of(plan)
        token_rows = [ends[item] - 1 - back for item, back in zip(host.row_items, host.behind, strict=True)]
        device_slots, device_counts, device_rows = self._upload(slots, counts, token_rows)
        tensors, groups = self.place(device_slots, device_counts, ends[-1], max(counts), longest)
        if not any(work.num_uncertain for work in plan.work):
            for group in groups:
                group.host_query_lens = counts
                group.host_seq_lens = [work.before + work.num_tokens for work in plan.work]
        if self.accepted is not None:
            (num_drafts,) = self._upload([work.num_drafts for work in plan.work])
            tails = DraftTails(device_slots, self.accepted[device_slots], num_drafts)
            for group in groups:
                group.tails = tails
        adapters = self.adapter_index(device_slots, tensors.rows) if self.has_adapters(plan) else None
        return LaidOutStep(tensors, groups, device_rows, *self.sample_rows(plan, host), adapters)

    def sample_rows(self, plan: StepPlan, host: HostRows) -> tuple[SampleRows, DraftRows | None]:
        """The rows of a speculative step on the device, and how they belong to requests, if there are any."""
        slots = [plan.work[item].slot for item in host.items]
        index, behind, *request = self._upload(host.slots, host.behind, slots, host.starts, host.counts)
        rows = SampleRows(host.slots, index, self.computed, host.most, host.fewest, behind)
        return rows, DraftRows(host.counts, *request) if slots else None

    def draft_by(self, speculator: DeviceSpeculator) -> None:
        """Has ``speculator`` draft."""

        def propose(known: Tensor, slots: Tensor, works: Sequence[Work]) -> Tensor:
            return speculator.propose(self.tokens, known, slots, works[0].num_drafts)

        self.propose = propose

    def draft(self, plan: StepPlan) -> None:
        """Drafts on the device what the plan's work has no drafts for, behind the last known token."""
        drafting = [work for work in plan.work if work.num_drafts and not work.drafts]
        if not drafting:
            return
        assert self.propose is not None, "without a speculator on the device, the plan has the drafts"
        drafting.sort(key=lambda work: -work.num_drafts)
        most = drafting[0].num_drafts
        slots, wanted, ahead = self._upload(
            [work.slot for work in drafting],
            [work.num_drafts for work in drafting],
            [work.num_tokens - work.num_drafts for work in drafting],
        )
        known = self.computed[slots] + ahead
        drafts = self.propose(known, slots, drafting)
        column = torch.arange(most, device=self.device)
        at = slots[:, None], (known[:, None] + column).clamp(max=self.max_len - 1)
        drafts = torch.where((drafts >= 0) & (drafts < self.vocab_size), drafts, 0).to(self.tokens.dtype)
        self.tokens[at] = torch.where(column < wanted[:, None], drafts, self.tokens[at])

    def place(
        self,
        slots: Tensor,
        counts: Tensor,
        num_tokens: int,
        max_query: int,
        max_seq: int,
        computed: Tensor | None = None,
    ) -> tuple[StepTensors, list[CacheStep]]:
        """The part of :meth:`lay_out` that runs on the device; ``slots`` and ``counts`` may be padded
        (:func:`llmk.reference.batch.build_step`). ``computed`` are lengths in place of the batch's."""
        computed = self.computed if computed is None else computed
        tensors = self._build_step(self.tokens, computed, slots, counts, num_tokens)
        groups = [
            self._cache_step(table, size, tensors, slots, slots.shape[0], num_tokens, max_query, max_seq)
            for table, size in zip(self.block_tables, self.block_sizes, strict=True)
        ]
        return tensors, groups

    def append(self, slots: Tensor, sampled: Tensor) -> None:
        """Puts each sampled token (int64 ``[samples]``) behind what its slot has computed, where the next step reads
        it."""
        self._append_tokens(self.tokens, self.computed, slots, sampled)

    def accept(self, drafts: DraftRows, sampled: Tensor) -> Tensor:
        """Takes back what is computed of drafts that differ from what was ``sampled`` (int64 ``[samples]``), and puts
        the token behind the others where the next step reads it. Returns how many tokens each request gained, int64
        ``[requests]``."""
        where = drafts.slots, drafts.starts, drafts.counts
        gained: Tensor = self._accept_drafts(self.tokens, self.computed, *where, sampled, max(drafts.host_counts))
        if self.accepted is not None:
            self.accepted[drafts.slots] = gained - 1
        return gained

    @property
    def max_len(self) -> int:
        """Tokens that a request may have, and one more."""
        return self.tokens.shape[1]

    def _cache_step(
        self,
        table: Tensor,
        block_size: int,
        tensors: StepTensors,
        slots: Tensor,
        num_requests: int,
        num_tokens: int,
        max_query: int,
        max_seq: int,
    ) -> CacheStep:
        blocks = -(-max_seq // block_size)
        rows, slot_mapping = self._compute_slot_mapping(
            table, slots, tensors.rows, tensors.positions, block_size, blocks
        )
        return CacheStep(
            query_start=tensors.query_start,
            seq_lens=tensors.seq_lens,
            block_table=rows,
            slot_mapping=slot_mapping,
            num_requests=num_requests,
            num_tokens=num_tokens,
            max_query_len=max_query,
            max_seq_len=max_seq,
            block_size=block_size,
        )

    def _enter(self, new: Sequence[NewRequest]) -> None:
        slots = [request.slot for request in new]
        lengths = [len(request.token_ids) for request in new]
        values = [token for request in new for token in request.token_ids]
        computed = [request.num_computed for request in new]
        rows, starts, runs, tokens, done = self._upload(slots, [0] * len(new), lengths, values, computed)
        self._update_rows(self.tokens, rows, starts, runs, tokens)
        self.computed[rows] = done
        if self.adapters is not None:
            self.adapters[rows] = to_device([request.adapter - 1 for request in new], self.device)
        if self.accepted is not None:
            self.accepted[rows] = 0
        for request in new:
            self._host_adapters[request.slot] = request.adapter
            for blocks in self._host_blocks:
                blocks[request.slot] = 0

    def _write_drafts(self, drafted: Sequence[Work]) -> None:
        """Puts drafts behind the last known token, where the step reads them."""
        slots, lengths = [work.slot for work in drafted], [work.num_drafts for work in drafted]
        starts = [work.before + work.num_tokens - work.num_drafts for work in drafted]
        values = [token for work in drafted for token in work.drafts]
        self._update_rows(self.tokens, *self._upload(slots, starts, lengths, values))

    def _grow(self, group: int, table: Tensor, plan: StepPlan) -> None:
        held = self._host_blocks[group]
        slots, starts, lengths, values = [], [], [], []
        added = [(request.slot, request.block_ids[group]) for request in plan.new]
        added += [(work.slot, work.new_blocks[group]) for work in plan.work if work.new_blocks]
        for slot, blocks in added:
            if blocks:
                slots.append(slot)
                starts.append(held[slot])
                lengths.append(len(blocks))
                values.extend(blocks)
                held[slot] += len(blocks)
        if values:
            self._update_rows(table, *self._upload(slots, starts, lengths, values))

    def _upload(self, *lists: Sequence[int]) -> Sequence[Tensor]:
        """Sends several lists of integers to the device in one copy; returns int64 views of it."""
        packed = to_device([value for values in lists for value in values], self.device)
        return torch.split(packed, [len(values) for values in lists])
