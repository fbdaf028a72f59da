"""What tests of the scheduler do with a core on the test device: requests, whole runs, and what must hold after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from llmk.engine.core import EngineCore
from llmk.engine.wire.request import EngineRequest, RequestContext, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.cache_groups import CacheGroup

KINDS: dict[str, Callable[[int], tuple[list[CacheGroup], set[int]]]] = {
    "full": lambda size: ([CacheGroup(size)], set()),
    "two full": lambda size: ([CacheGroup(size), CacheGroup(size)], set()),
    "window": lambda size: ([CacheGroup(size, 5)], set()),
    "full and window": lambda size: ([CacheGroup(size), CacheGroup(size, 2 * size)], set()),
    "state": lambda size: ([CacheGroup(size, 1)], {0}),
    "full and states": lambda size: ([CacheGroup(size), CacheGroup(2 * size, 1), CacheGroup(2 * size, 1)], {1, 2}),
    "all": lambda size: ([CacheGroup(2 * size), CacheGroup(size, 7), CacheGroup(4 * size, 1)], {2}),
}
"""Cache groups by their tokens per block, and which of them keep recurrent state."""


def request(id_: str, prompt: list[int], *, priority: int = 0, salt: str = "", **params: object) -> EngineRequest:
    params.setdefault("temperature", 0.0)
    return EngineRequest(
        id=id_,
        context=RequestContext(priority=priority, cache_salt=salt),
        prompt_token_ids=prompt,
        params=SamplingParams(**params),
    )


def drain(core: EngineCore, limit: int = 2000) -> dict[str, list[TokenOutput]]:
    """Steps until nothing is left; returns outputs by id."""
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(limit):
        if not core.has_work:
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.id, []).append(output)
    raise AssertionError("the engine makes no progress")


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def assert_consistent(core: EngineCore) -> None:
    """Every block is held as often as running sequences hold it, by those of one salt and one group, and free exactly
    if none does."""
    scheduler = core.scheduler
    pool = scheduler.cache.pool
    held: Counter[int] = Counter()
    users: dict[int, set[tuple[int, str]]] = {}
    for sequence in scheduler.running:
        for group, (table, first) in enumerate(zip(sequence.tables.tables, sequence.tables.first, strict=True)):
            held.update(table[first:])
            for block in table[first:]:
                users.setdefault(block, set()).add((group, sequence.request.context.cache_salt))
    assert all(len(who) == 1 for who in users.values())
    held.update(block for pin in scheduler.pins._pins.values() for block in pin.blocks)
    held.update(block for pin in scheduler.pins._prefixes for block in pin.blocks)
    assert [held[block] for block in range(pool.num_blocks)] == pool._holders
    assert set(pool._free) == {block for block in range(pool.num_blocks) if not held[block]}
    for group, cached in enumerate(pool._cached):
        for key, block in cached.items():
            assert pool._names[block] == (group, key)
    slots = [seq.slot for seq in scheduler.running]
    assert sorted(slots + scheduler.live.free_slots) == list(range(len(slots) + len(scheduler.live.free_slots)))
    assert all(not any(seq.tables.tables) for seq in scheduler.waiting)


def assert_empty(core: EngineCore) -> None:
    """Nothing is left behind."""
    scheduler = core.scheduler
    assert not scheduler.running
    assert not scheduler.waiting
    assert not len(scheduler.live)
    assert scheduler.cache.num_free == scheduler.cache.num_blocks
    assert not scheduler.cache._computing
    assert_consistent(core)
