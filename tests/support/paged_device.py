"""A device without arithmetic: its cache stores token ids, and the next token is a hash of the history that it reads
back.

A wrong block table, a block that two requests write, a stale hit or a token out of place each change what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from llmk.api import SchedulingPolicy
from llmk.engine.core import EngineCore
from llmk.engine.deadlines import Deadlines
from llmk.engine.policy import GuardedPolicy
from llmk.engine.request import TokenLogprobs
from llmk.engine.scheduler import Scheduler
from llmk.engine.step import NewRequest, ScoredTokens, StepPlan, StepResult

VOCAB = 50


def next_token(history: list[int], seed: int = 0) -> int:
    """The token that follows ``history``: what the device must compute from its cache."""
    packed = b"".join(token.to_bytes(4, "little") for token in history)
    return int.from_bytes(blake2b(packed, digest_size=4, salt=seed.to_bytes(8, "little")).digest(), "little") % VOCAB


def run_alone(
    prompt: list[int], max_tokens: int, *, limit: int, stops: tuple[int, ...] = (), seed: int = 0
) -> list[int]:
    """What a sequence must come to."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < limit:
        tokens.append(next_token(tokens, seed))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


@dataclass
class Row:
    """A slot of the batch."""

    request: NewRequest
    tokens: list[int]
    computed: int
    tables: list[list[int]]


@dataclass
class DonePending:
    step: int
    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


@dataclass
class PagedDevice:
    """Runs steps on a paged store of token ids, one per cache group. ``before_step`` may raise or wait, once slots
    were freed."""

    num_blocks: int
    block_size: int
    num_groups: int = 1
    max_tokens_per_step: int = 1 << 30
    before_step: Callable[[StepPlan], None] = lambda plan: None
    rows: dict[int, Row] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.num_blocks * self.block_size
        self.stores = [[-1] * size for _ in range(self.num_groups)]

    def submit(self, plan: StepPlan) -> DonePending:
        for slot in plan.freed:
            self.rows.pop(slot, None)
        self.before_step(plan)
        for request in plan.new:
            assert request.slot not in self.rows, "a slot was given away twice"
            tables = [list(table) for table in request.block_ids]
            self.rows[request.slot] = Row(request, list(request.token_ids), request.num_computed, tables)
        assert len({work.slot for work in plan.work}) == len(plan.work)
        assert plan.num_tokens <= self.max_tokens_per_step
        self.steps.append(plan.num_tokens)
        result = StepResult(step=plan.step, slots=[], token_ids=[], logprobs={}, scored={})
        for number, work in enumerate(plan.work):
            first = self.rows[work.slot].computed
            self._write(work.slot, work.num_tokens, work.new_blocks)
            self._score(number, self.rows[work.slot], first, result)
        for work in plan.work:
            row = self.rows[work.slot]
            assert work.sample == (row.computed == len(row.tokens)), "a token is sampled exactly when all are computed"
            if work.sample:
                self._sample(work.slot, row, result)
        return DonePending(plan.step, result)

    def _write(self, slot: int, count: int, new_blocks: list[list[int]]) -> None:
        row = self.rows[slot]
        for table, blocks in zip(row.tables, new_blocks, strict=False):
            table.extend(blocks)
        assert count > 0
        assert row.computed + count <= len(row.tokens)
        for position in range(row.computed, row.computed + count):
            for store, table in zip(self.stores, row.tables, strict=True):
                store[self._address(table, position)] = row.tokens[position]
        row.computed += count

    def _score(self, number: int, row: Row, first: int, result: StepResult) -> None:
        """A prompt token's log-probability is minus its place."""
        request = row.request
        start, stop = max(first + 1, request.num_scored), min(row.computed + 1, request.num_prompt_tokens)
        if request.params.prompt_logprobs is not None and start < stop:
            tokens = [TokenLogprobs(row.tokens[at], -float(at), 1) for at in range(start, stop)]
            result.scored[number] = ScoredTokens(start, tokens)

    def _sample(self, slot: int, row: Row, result: StepResult) -> None:
        histories = [
            [store[self._address(table, position)] for position in range(row.computed)]
            for store, table in zip(self.stores, row.tables, strict=True)
        ]
        assert all(history == histories[0] for history in histories)
        token = next_token(histories[0], row.request.seed)
        row.tokens.append(token)
        result.slots.append(slot)
        result.token_ids.append(token)
        if row.request.params.logprobs is not None:
            top = tuple((t, -float(t + 1)) for t in range(row.request.params.logprobs))
            result.logprobs[slot] = TokenLogprobs(token, -0.5, 1, top)

    def _address(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size


def make_core(
    *,
    num_blocks: int = 32,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    max_model_len: int = 64,
    prefix_caching: bool = True,
    chunked_prefill: bool = True,
    num_groups: int = 1,
    depth: int = 1,
    policy: SchedulingPolicy | None = None,
    queue_timeout: float = 0.0,
    request_timeout: float = 0.0,
) -> EngineCore:
    """An engine over a paged device. Its seconds are the steps that the device has run."""
    scheduler = Scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=block_size,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked_prefill,
        num_groups=num_groups,
        policy=GuardedPolicy(policy, "test"),
        deadlines=Deadlines(queue_timeout, request_timeout),
        clock=lambda: float(len(device.steps)),
    )
    device = PagedDevice(num_blocks, block_size, num_groups, max_tokens_per_step=scheduler.max_run_tokens)
    return EngineCore(scheduler, device, depth=depth)
