"""Events of the cache say which prefixes it has, step by step."""

from __future__ import annotations

import random

import msgspec
from msgspec.structs import replace
from paged_device import make_core

from llmk.engine.cache.prefix_keys import KeyChain, block_hash, first_key
from llmk.engine.wire.block_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from runs import drain, request


def follow(known: set[int], events) -> None:
    for event in events:
        match event:
            case BlockStored():
                assert event.parent_block_hash is None or event.parent_block_hash in known
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                known.update(event.block_hashes)
            case BlockRemoved():
                assert known.issuperset(event.block_hashes)
                known.difference_update(event.block_hashes)


def held(core) -> set[int]:
    return {block_hash(key) for key in core.scheduler.cache.pool._cached[0]}


def test_a_reader_knows_what_is_cached_after_every_step() -> None:
    core = make_core(num_blocks=12)
    core.scheduler.cache.keep_log()
    known, generator = set[int](), random.Random(1)
    for number in range(60):
        prompt = [generator.choice((1, 2))] * generator.randint(1, 20) + [number % 7]
        core.add(request(str(number), prompt, max_tokens=generator.randint(1, 8)))
        while core.has_work:
            follow(known, core.step().blocks)
            assert known == held(core)
    assert known


def test_consecutive_blocks_are_one_event_and_hashes_are_of_the_prompt() -> None:
    core = make_core()
    core.scheduler.cache.keep_log()
    prompt = list(range(12))
    core.add(replace(request("a", prompt, max_tokens=1), adapter=2))
    events: list = []
    while core.has_work:
        events += core.step().blocks
    size = core.scheduler.cache.block_size
    keys: list[bytes] = []
    KeyChain(size).extend(keys, first_key("", 2), prompt, (), len(prompt) // size)
    (stored,) = events
    assert stored.block_hashes == [block_hash(key) for key in keys]
    assert (stored.parent_block_hash, stored.token_ids, stored.lora_id) == (None, prompt[: size * len(keys)], 2)


def test_nothing_is_logged_where_no_one_reads() -> None:
    core = make_core()
    core.add(request("a", list(range(12)), max_tokens=1))
    drain(core)
    assert core.scheduler.cache.take_events() == []


def test_messages_are_arrays_that_start_with_names() -> None:
    events = [BlockStored([7, 8], None, [1, 2], 1, None), BlockRemoved([7]), AllBlocksCleared()]
    packed = msgspec.msgpack.encode(EventBatch(1.5, events, 3))
    stored = ["BlockStored", [7, 8], None, [1, 2], 1, None]
    assert msgspec.msgpack.decode(packed) == [1.5, [stored, ["BlockRemoved", [7]], ["AllBlocksCleared"]], 3]
