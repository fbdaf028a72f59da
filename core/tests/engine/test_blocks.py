"""The block pool's order, and keys that mean the same everywhere."""

from __future__ import annotations

from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.cache.block_pool import BlockPool
from llmk.planning.cache_groups import CacheGroup


def test_blocks_without_content_are_taken_first_then_the_least_recently_used():
    pool = BlockPool(5)
    older, newer = pool.take(2), pool.take(2)
    for block, key in zip([*older, *newer[:1]], (b"a", b"b", b"c"), strict=True):
        pool.name(block, key)
    pool.release(older)
    pool.release(newer)
    assert pool.take(2) == [newer[1], 4]
    assert pool.take(3) == [older[1], older[0], newer[0]]
    assert pool.find(b"a") is None


def test_a_free_block_is_had_again_until_it_is_taken():
    pool = BlockPool(2)
    block = pool.take(1)
    pool.name(block[0], b"a")
    pool.release(block)
    assert pool.is_free(block[0])
    assert pool.find(b"a") == block[0]
    pool.share(block)
    pool.share(block)
    pool.release(block)
    assert not pool.is_free(block[0])
    assert pool.num_free == 1


def test_a_name_stays_with_its_first_block():
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.name(first, b"a")
    pool.name(second, b"a")
    pool.release([first, second])
    assert pool.find(b"a") == first
    assert pool.take(3) == [second, 2, first]


def test_keys_do_not_depend_on_process_or_machine():
    cache = BlockCache(num_blocks=4, groups=[CacheGroup(4)])
    tables = cache.new_tables("salt")
    assert cache.admit(tables, range(9), ahead=9) == 0
    assert [key.hex()[:16] for key in tables.keys] == ["35c513303b270335", "a770d7cf47f17252"]


def test_a_refused_admission_changes_nothing():
    cache = BlockCache(num_blocks=8, groups=[CacheGroup(4), CacheGroup(4)])
    held, late = cache.new_tables(), cache.new_tables()
    assert cache.admit(held, range(8), ahead=8) == 0
    cache.commit(held, range(8), 8)
    assert cache.admit(late, range(8), ahead=8, spare=3) is None
    assert late.tables == [[], []]
    assert cache.num_free == 4
    assert cache.admit(late, range(12), ahead=12) == 8
    assert late.tables[0][:2] == held.tables[0]
    assert cache.extend(late, 13)
    late.num_sent = [3, 3]
    assert late.take_new_blocks() == [[late.tables[0][3]], [late.tables[1][3]]]
    assert late.take_new_blocks() == []
    assert not cache.extend(held, 9)
    assert held.take_new_blocks() == []


def test_a_window_gives_back_what_it_has_left_and_is_a_hit_by_what_it_would_read():
    cache = BlockCache(num_blocks=12, groups=[CacheGroup(4), CacheGroup(4, retained=5)])
    tokens = list(range(21))
    first = cache.new_tables()
    assert cache.admit(first, tokens, ahead=8) == 0
    assert [len(table) for table in first.tables] == [6, 2]
    cache.commit(first, tokens, 8)
    assert first.first == [0, 0], "token 8 reads from token 3 on"
    assert cache.extend(first, 16)
    cache.commit(first, tokens, 16)
    assert first.first == [0, 2], "token 16 reads from token 11 on"
    assert cache.num_free == 12 - 6 - 2
    cache.release(first)
    again = cache.new_tables()
    assert cache.admit(again, tokens, ahead=8) == 16
    assert again.first == [0, 2]
    assert [len(table) for table in again.tables] == [6, 6]


def test_a_state_is_a_hit_at_its_snapshots_alone():
    cache = BlockCache(num_blocks=80, groups=[CacheGroup(4), CacheGroup(8, retained=1)])
    tokens = list(range(30))
    first = cache.new_tables()
    assert cache.admit(first, tokens, ahead=30) == 0
    cache.commit(first, tokens, 22)
    assert first.first == [0, 2]
    for length, hit in ((8, 0), (9, 8), (16, 8), (17, 16), (23, 16), (30, 16)):
        assert cache.admit(cache.new_tables(), tokens[:length], ahead=1) == hit


def test_what_is_taken_by_one_group_is_no_hit_for_another():
    cache = BlockCache(num_blocks=4, groups=[CacheGroup(4), CacheGroup(4)])
    first = cache.new_tables()
    assert cache.admit(first, range(4), ahead=4) == 0
    cache.commit(first, range(4), 4)
    cache.release(first)
    assert cache.hold(cache.new_tables(), range(5)) == (4, [0, 1])
    cache.pool.release([0, 1])
    cache.pool.release(cache.pool.take(3))
    assert cache.admit(cache.new_tables(), range(5), ahead=1) == 0
