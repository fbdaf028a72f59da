"""A device without arithmetic: its cache stores token ids, and the next token is a hash of the history that it reads
back.

A wrong block table, a block that two requests write, a stale hit or a token out of place each change what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from llmk.api import Grammar, SchedulingPolicy, Speculator
from llmk.engine.core import EngineCore
from llmk.engine.execution.executor import Executor
from llmk.engine.scheduling.deadlines import Deadlines
from llmk.engine.scheduling.draft_length import Acceptance, DraftLength
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.scheduling.prompt_limit import PromptLimit
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.scheduling.step_limit import StepLimit
from llmk.engine.wire.cost import CostModel
from llmk.engine.wire.request import HiddenRows, TokenLogprobs
from llmk.engine.wire.step import Masks, NewRequest, ScoredTokens, StepPlan, StepResult, Work
from llmk.planning.cache_groups import CacheGroup

VOCAB = 50


def next_token(history: list[int], seed: int = 0) -> int:
    """The token that follows ``history``: what the device must compute from its cache."""
    packed = b"".join(token.to_bytes(4, "little") for token in history)
    return int.from_bytes(blake2b(packed, digest_size=4, salt=seed.to_bytes(8, "little")).digest(), "little") % VOCAB


def masked_token(history: list[int], seed: int, bits: bytes) -> int:
    """The first token from the one that follows ``history`` on that a mask allows."""
    first = next_token(history, seed)
    candidates = [(first + more) % VOCAB for more in range(VOCAB)]
    return next(token for token in candidates if bits[token // 8] >> token % 8 & 1)


class Thirds(Grammar):
    """Allows a third of all tokens, which depends on those before."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def fill(self, bits: memoryview) -> None:
        rest = (sum(self.accepted) + len(self.accepted)) % 3
        for token in range(rest, VOCAB, 3):
            bits[token // 32] |= 1 << token % 32 if token % 32 < 31 else -(1 << 31)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert token % 3 == (sum(self.accepted) + len(self.accepted)) % 3
            self.accepted.append(token)

    def rollback(self, num_tokens: int) -> None:
        del self.accepted[-num_tokens:]

    def forced(self) -> Sequence[int]:
        """Now and then a token that is allowed, though not alone."""
        rest = (sum(self.accepted) + len(self.accepted)) % 3
        return [rest + 3 * (len(self.accepted) % 7)] if len(self.accepted) % 3 else []


def run_alone(
    prompt: list[int],
    max_tokens: int,
    *,
    limit: int,
    stops: tuple[int, ...] = (),
    seed: int = 0,
    grammar: Grammar | None = None,
) -> list[int]:
    """What a sequence must come to."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < limit:
        if grammar is None:
            tokens.append(next_token(tokens, seed))
        else:
            bits = bytearray(8)
            grammar.fill(memoryview(bits).cast("i"))
            tokens.append(masked_token(tokens, seed, bytes(bits)))
            grammar.accept(tokens[-1:])
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
    tail: int = 0
    """Accepted drafts of the last step, which recurrent states do not have yet."""


@dataclass
class DonePending:
    step: int
    outcome: StepResult

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self.outcome


@dataclass
class PagedDevice(Executor):
    """Runs steps on one pool of blocks, which all cache groups write to in turn. ``before_step`` may raise or wait,
    once slots were freed.

    A group that keeps everything stores token ids; so does one with a window, which reads its own window alone. A
    recurrent one (``states``) stores a digest of all tokens up to the last of the block, of drafts once it is known
    that they were accepted. What each entry was written for is kept with it, so that reading another group's block, or
    another prefix's, shows.

    Where a step does not say what the drafts are, the device drafts tokens of which some are right.
    """

    num_blocks: int
    groups: Sequence[CacheGroup] = (CacheGroup(4),)
    states: frozenset[int] = frozenset()
    asynchronous: str = ""
    max_tokens_per_step: int = 1 << 30
    before_step: Callable[[StepPlan], None] = lambda plan: None
    takes: Callable[[int], float] = lambda num_tokens: 1.0
    """Seconds of a step of so many tokens."""
    seconds: float = 0.0
    """What all steps took."""
    rows: dict[int, Row] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool: list[dict[tuple[int, int], int | bytes]] = [{} for _ in range(self.num_blocks)]
        self.unsampled: tuple[StepPlan, list[list[int]], StepResult] | None = None

    def submit(self, plan: StepPlan) -> DonePending:
        assert self.unsampled is None, "the step before has no masks yet"
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
        self.seconds += self.takes(plan.num_tokens)
        result, all_drafts = StepResult(step=plan.step), list[list[int]]()
        for number, work in enumerate(plan.work):
            row = self.rows[work.slot]
            first = row.computed
            assert work.before - work.num_uncertain <= first <= work.before
            drafts = [*work.drafts] or drafted(row, work.num_drafts)
            assert len(drafts) == work.num_drafts
            self._write(row, work, drafts)
            self._score(number, row, first, result)
            self._tell(number, row, first, result)
            wanted = row.request.returns == "tokens"
            known = row.computed - len(drafts)
            assert work.sample == (wanted and known == len(row.tokens)), "sampled exactly when all are computed"
            all_drafts.append(drafts)
        assert plan.deferred == any(work.masked for work in plan.work)
        self.unsampled = plan, all_drafts, result
        if not plan.deferred:
            self.sample(Masks(step=plan.step, rows=[], bits=bytearray()))
        return DonePending(plan.step, result)

    def sample(self, masks: Masks) -> None:
        assert self.unsampled is not None
        (plan, all_drafts, result), self.unsampled = self.unsampled, None
        assert masks.step == plan.step
        bits = {row: masks.bits[8 * at : 8 * at + 8] for at, row in enumerate(masks.rows)}
        first = 0
        for number, (work, drafts) in enumerate(zip(plan.work, all_drafts, strict=True)):
            if work.sample:
                own = [bits.pop(row, b"") for row in range(first, first + 1 + len(drafts))]
                self._verify(number, self.rows[work.slot], drafts, result, own)
                first += 1 + len(drafts)
        assert not bits

    def _write(self, row: Row, work: Work, drafts: list[int]) -> None:
        for table, blocks in zip(row.tables, work.new_blocks, strict=bool(work.new_blocks)):
            table.extend(blocks)
        tokens, end = row.tokens + drafts, row.computed + work.num_tokens
        assert work.num_tokens > len(drafts)
        assert end <= len(tokens)
        for number, (group, table) in enumerate(zip(self.groups, row.tables, strict=True)):
            of_states = range(row.computed - row.tail, end - len(drafts))
            for position in of_states if number in self.states else range(row.computed, end):
                self._store(number, group, table, position, tokens[position])
        row.computed, row.tail = end, 0

    def _store(self, number: int, group: CacheGroup, table: list[int], position: int, token: int) -> None:
        block = self.pool[table[position // group.block_size]]
        if number not in self.states:
            if position % group.block_size == 0:
                block.clear()
            block[number, position] = token
            return
        before = self.pool[table[(position - 1) // group.block_size]][number, position - 1] if position else b""
        state = digest(before, token)
        block.clear()
        block[number, position] = state

    def _read(self, number: int, group: CacheGroup, row: Row, drafts: Sequence[int] = (), behind: int = 0) -> list[Any]:
        """What a group gives for the token that has so many computed ones ``behind`` it; states advance over ``drafts``
        from the last token that they were stored for."""
        last = row.computed - 1 - behind
        first = 0 if group.retained is None else max(0, last - group.retained)
        table = row.tables[number]
        if number in self.states:
            place = last - len(drafts)
            state = self.pool[table[place // group.block_size]][number, place]
            for token in drafts:
                state = digest(state, token)
            return [state]
        return [self.pool[table[place // group.block_size]][number, place] for place in range(first, last + 1)]

    def _expected(self, number: int, group: CacheGroup, tokens: list[int]) -> list[int | bytes]:
        if number in self.states:
            state: int | bytes = b""
            for token in tokens:
                state = digest(state, token)
            return [state]
        return list(tokens if group.retained is None else tokens[-group.retained - 1 :])

    def _score(self, number: int, row: Row, first: int, result: StepResult) -> None:
        """A prompt token's log-probability is minus its place."""
        request = row.request
        start, stop = max(first + 1, request.num_delivered), min(row.computed + 1, request.num_prompt_tokens)
        if request.params.prompt_logprobs is not None and start < stop:
            tokens = [TokenLogprobs(row.tokens[at], -float(at), 1) for at in range(start, stop)]
            result.scored[number] = ScoredTokens(start, tokens)

    def _tell(self, number: int, row: Row, first: int, result: StepResult) -> None:
        """A prompt token's hidden state is the token, as a byte, and the group's last one must be right to have it."""
        request = row.request
        stop = min(row.computed, request.num_prompt_tokens)
        start = {"hidden": max(first, request.num_delivered), "last_hidden": request.num_prompt_tokens - 1}
        begin = start.get(request.returns, stop)
        if begin < stop:
            for group_number, group in enumerate(self.groups):
                assert self._read(group_number, group, row) == self._expected(
                    group_number, group, row.tokens[: row.computed]
                )
            result.hidden[number] = HiddenRows(begin, stop - begin, "uint8", bytes(row.tokens[begin:stop]))

    def _verify(self, work: int, row: Row, drafts: list[int], result: StepResult, bits: list[bytes]) -> None:
        """Samples at each draft and behind them, by the mask of each if there are any, and keeps what is sampled up to
        the first that is not the draft."""
        sampled: list[int] = []
        for count in range(len(drafts) + 1):
            history, behind = row.tokens + drafts[:count], len(drafts) - count
            for number, group in enumerate(self.groups):
                found = self._read(number, group, row, drafts[:count], behind)
                assert found == self._expected(number, group, history)
            seed = row.request.seed
            own = bits[count]
            assert bool(own) == bool(bits[0]), "each draft that may be accepted has a mask"
            sampled.append(masked_token(history, seed, own) if own else next_token(history, seed))
            if sampled[-1:] != drafts[count : count + 1]:
                break
        row.tokens += sampled
        row.tail = len(sampled) - 1
        row.computed -= len(drafts) - row.tail
        result.tokens.append(list(sampled))
        if row.request.params.logprobs is not None:
            top = tuple((t, -float(t + 1)) for t in range(row.request.params.logprobs))
            result.logprobs[work] = [TokenLogprobs(token, -0.5, 1, top) for token in sampled]


def drafted(row: Row, count: int) -> list[int]:
    """Drafts of the device: the tokens that follow, but for every third."""
    tokens = list(row.tokens)
    for _ in range(count):
        right = next_token(tokens, row.request.seed)
        tokens.append(right if len(tokens) % 3 else (right + 1) % VOCAB)
    return tokens[len(row.tokens) :]


class Foresight(Speculator):
    """Drafts on the host what follows, but for every ``wrong``-th token, and nothing at every fifth place."""

    def __init__(self, wrong: int = 4) -> None:
        self.wrong = wrong
        self.seeds: dict[str, int] = {}
        self.seen: dict[str, list[int]] = {}
        self.left: list[str] = []

    def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
        assert request not in self.left
        assert most > 0
        before = self.seen.get(request, [])
        assert list(tokens[: len(before)]) == before, "tokens only grow"
        self.seen[request] = known = list(tokens)
        for _ in range(most if len(tokens) % 5 else 0):
            right = next_token(known, self.seeds.get(request, 0))
            known = [*known, right if len(known) % self.wrong else (right + 1) % VOCAB]
        return known[len(tokens) :]

    def leave(self, request: str) -> None:
        self.left.append(request)


class Always(DraftLength):
    """As many drafts as there may be, no matter what they gain."""

    def choose(self, batch_size: int) -> int:
        return self.most

    def choose_for(self, request: Acceptance, chosen: int) -> int:
        return chosen


def digest(state: int | bytes, token: int) -> bytes:
    """The state after ``token``."""
    return blake2b(bytes(state) + token.to_bytes(4, "little"), digest_size=16).digest()


@dataclass
class BehindPending:
    step: int
    future: Future[StepResult]

    def is_done(self) -> bool:
        return self.future.done()

    def result(self) -> StepResult:
        return self.future.result()


class BehindDevice(Executor):
    """Runs a device's steps behind the host: one after the other in a thread, ``seconds`` each."""

    asynchronous = "a thread runs the steps"

    def __init__(self, device: PagedDevice, seconds: float = 0.0) -> None:
        self.device = device
        self.seconds = seconds
        self._pool = ThreadPoolExecutor(1)

    def submit(self, plan: StepPlan) -> BehindPending:
        return BehindPending(plan.step, self._pool.submit(self._run, msgspec.msgpack.encode(plan)))

    def sample(self, masks: Masks) -> None:
        self._pool.submit(self.device.sample, masks).result()

    def _run(self, plan: bytes) -> StepResult:
        time.sleep(self.seconds)
        return self.device.submit(msgspec.msgpack.decode(plan, type=StepPlan)).result()


def make_core(
    *,
    num_blocks: int = 32,
    groups: Sequence[CacheGroup] = (CacheGroup(4),),
    states: Iterable[int] = (),
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    max_model_len: int = 64,
    prefix_caching: bool = True,
    chunked_prefill: bool = True,
    pin_share: float = 0.5,
    tenant_pin_share: float = 0.1,
    depth: int = 1,
    policy: SchedulingPolicy | None = None,
    queue_timeout: float = 0.0,
    request_timeout: float = 0.0,
    step_limit: StepLimit | None = None,
    prompt_limit: PromptLimit | None = None,
    cost: CostModel | None = None,
    drafting: Drafting | None = None,
    stages: int = 1,
    seconds: Callable[[int], float] = lambda num_tokens: 1.0,
) -> EngineCore:
    """An engine over a paged device, on which a step of so many tokens takes so many ``seconds``. No other time
    passes."""
    scheduler = Scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        groups=groups,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked_prefill,
        pin_share=pin_share,
        tenant_pin_share=tenant_pin_share,
        policy=GuardedPolicy(policy, "test"),
        deadlines=Deadlines(queue_timeout, request_timeout),
        step_limit=step_limit,
        prompt_limit=prompt_limit,
        cost=cost,
        drafting=drafting,
        vocab_size=VOCAB,
        stages=stages,
        clock=lambda: device.seconds,
    )
    device = PagedDevice(
        num_blocks, groups, frozenset(states), max_tokens_per_step=scheduler.max_run_tokens, takes=seconds
    )
    return EngineCore(scheduler, device, depth=depth)
