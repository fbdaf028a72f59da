"""Memory planning: every refusal names what is needed for what, and what there is."""

from __future__ import annotations

import pytest

from llmk.api import ModelFacts, NotEnoughMemory
from llmk.config.schema import CacheSection, Config, SchedulerSection
from llmk.engine.groups import CacheGroup
from llmk.engine.memory import check_weights, gib, plan_cache

FACTS = ModelFacts(
    architecture="A", model="m.a", num_layers=2, hidden_size=8, vocab_size=16, max_model_len=64, dtype="bfloat16",
    num_parameters=1_000_000_000,
)  # fmt: skip


def config(seqs: int = 4, **cache: object) -> Config:
    return Config(cache=CacheSection(**cache), scheduler=SchedulerSection(max_num_seqs=seqs))


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    check_weights(FACTS, "bfloat16", 2_000_000_000)
    with pytest.raises(NotEnoughMemory, match=r"need 3\.7 GiB .*in float32.*, 1\.9 GiB is free"):
        check_weights(FACTS, "float32", 2_000_000_000)


def test_the_pool_is_no_larger_than_the_requests_can_use() -> None:
    plan = plan_cache(config(seqs=2), 100, [CacheGroup(16)], block_bytes=1 << 10, available=1 << 40)
    assert plan.num_blocks == 2 * 7
    assert plan.total_bytes == 14 << 10


def test_the_pool_takes_its_share_of_what_is_free() -> None:
    plan = plan_cache(config(seqs=64, memory_share=0.5), 160, [CacheGroup(16)], block_bytes=1 << 20, available=64 << 20)
    assert plan.num_blocks == 32


def test_a_named_size_is_honoured_or_refused() -> None:
    assert plan_cache(config(num_blocks=9), 64, [CacheGroup(16)], 1 << 20, 1 << 30).num_blocks == 9
    with pytest.raises(NotEnoughMemory, match=r"5000 blocks.*by cache\.num_blocks.*1\.0 GiB is free"):
        plan_cache(config(num_blocks=5000), 64, [CacheGroup(16)], 1 << 20, 1 << 30)


def test_a_pool_too_small_for_one_request_says_which_length_would_fit() -> None:
    expected = r"needs 64 blocks \(1\.0 GiB\) for one request of 1024 tokens, and 10 fit"
    with pytest.raises(NotEnoughMemory, match=expected) as e:
        plan_cache(config(memory_gib=0.16), 1024, [CacheGroup(16)], 16 << 20, 1 << 30)
    assert "--max-model-len to 160 or less" in str(e.value)


def test_sizes_read_well() -> None:
    assert gib(3 << 30) == "3.0 GiB"
    assert gib(1 << 20) == "1.0 MiB"


def test_groups_that_give_blocks_back_make_room_for_longer_requests() -> None:
    groups = [CacheGroup(16), CacheGroup(16, retained=31), CacheGroup(64, retained=1)]
    assert plan_cache(config(num_blocks=11), 64, groups, 1 << 10, 1 << 20).num_blocks == 11
    with pytest.raises(NotEnoughMemory, match=r"needs 69 blocks .* for one request of 1024 tokens, and 10 fit") as e:
        plan_cache(config(num_blocks=10), 1024, groups, 1 << 10, 1 << 20)
    assert "--max-model-len to 80 or less" in str(e.value)
