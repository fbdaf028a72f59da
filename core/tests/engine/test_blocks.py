"""The block pool's order, and keys that mean the same everywhere."""

from __future__ import annotations

from llmk.engine.blocks import BlockCache, BlockPool


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
    cache = BlockCache(num_blocks=4, block_size=4)
    tables = cache.new_tables("salt")
    assert cache.admit(tables, range(9)) == 0
    assert [key.hex()[:16] for key in tables.keys] == ["35c513303b270335", "a770d7cf47f17252"]


def test_a_refused_admission_changes_nothing():
    cache = BlockCache(num_blocks=4, block_size=4, num_groups=2)
    held, late = cache.new_tables(), cache.new_tables()
    assert cache.admit(held, range(8)) == 0
    cache.commit(held, range(8), 8)
    assert cache.admit(late, range(8), spare=2) is None
    assert late.tables == [[], []]
    assert cache.num_free == 2
    assert cache.admit(late, range(12)) == 8
    assert late.tables[0][:2] == held.tables[0]
    assert cache.extend(late) == [[late.tables[0][3]], [late.tables[1][3]]]
    assert cache.extend(held) is None
