"""Memory planning: every refusal names what is needed for what, and what there is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from llmk.api import (
    AttentionFacts,
    CacheSpec,
    FullAttentionCache,
    LinearFacts,
    ModelFacts,
    NotEnoughMemory,
    Plan,
    PlatformFacts,
    RecurrentCache,
    RowsCache,
    StateTensor,
)
from llmk.config.schema import CacheSection, Config, SchedulerSection
from llmk.engine.processes.ranks.multiprocess_executor import smallest_cache
from llmk.planning.cache_groups import CacheGroup, form_groups, page_bytes, state_offsets
from llmk.planning.memory import cache_problems, check_context, check_weights, gib, plan_cache, weight_bytes

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


def test_a_process_needs_its_share_of_the_weights_and_a_byte_of_quantized_ones() -> None:
    shape = {"in_features": 20_000, "out_features": 20_000}
    sites = [LinearFacts(site="up", **shape, count=2, weight_format="fp8")]
    sites.append(LinearFacts(site="head", in_features=10_000, out_features=10_000, quantizable=False))
    facts = replace(FACTS, linear=tuple(sites))
    bits = {"fp8": 8.0, "int4": 4.5}
    check_weights(facts, "bfloat16", 1_200_000_000, weight_bits=bits)
    with pytest.raises(NotEnoughMemory, match=r"need 1\.1 GiB .*in bfloat16, quantized layers in 4\.5 and 8 bits\)"):
        check_weights(facts, "bfloat16", 1_199_999_999, weight_bits=bits)
    both = (*sites, LinearFacts(site="up.int4", **shape, weight_format="int4"))
    mixed = replace(facts, linear=both, num_parameters=2_000_000_000)
    assert weight_bytes(mixed, "bfloat16", bits) == 800_000_000 + 225_000_000 + 2 * 800_000_000
    check_weights(facts, "bfloat16", 1_000_000_000, share=0.5)
    with pytest.raises(NotEnoughMemory, match=r"\(500,000,000 parameters in bfloat16\)"):
        check_weights(facts, "bfloat16", 999_999_999, share=0.5)


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


@pytest.mark.parametrize(
    ("cache", "hint"),
    [
        ({"memory_gib": 0.00001}, "raise cache.memory_gib to 0.008 or more"),
        ({"memory_share": 0.0000001}, "free memory, or raise cache.memory_share"),
        ({"num_blocks": 1}, "lower --max-model-len to 16 or less, or raise cache.num_blocks to 128 or more"),
    ],
)
def test_a_pool_too_small_for_any_request_names_its_own_setting(cache: dict[str, Any], hint: str) -> None:
    with pytest.raises(NotEnoughMemory) as e:
        plan_cache(config(**cache), 2048, [CacheGroup(16)], block_bytes=1 << 16, available=1 << 30)
    assert e.value.hint == hint


@pytest.mark.parametrize(("num_devices", "num_blocks"), [(1, 8), (4, 20)])
def test_ranks_share_the_size_of_the_pool_and_perhaps_a_device(num_devices: int, num_blocks: int) -> None:
    """One device has 41 MiB for blocks that take 5 MiB in all ranks; the second of four has them for its own 2 MiB."""
    platform = PlatformFacts(name="box", arch="b", device_type="cpu", num_devices=num_devices, shared_device=True)
    plan = Plan(platform, "p", "", "m", "", "A", "float32", (), tensor=2, pipeline=2)
    settings: Any = SimpleNamespace(config=config(seqs=64, memory_share=1.0))
    boot: Any = SimpleNamespace(plan=plan, settings=settings, facts=replace(FACTS, max_model_len=64))
    ranks = ((1, 60), (2, 41), (1, 90), (1, 99))
    specs = [[FullAttentionCache(16, size << 20)] for size, _ in ranks]
    groups = form_groups(specs[::2], state_block_size=16)
    found = smallest_cache(boot, groups, specs, [free << 20 for _, free in ranks])
    assert found.num_blocks == num_blocks


def test_sizes_read_well() -> None:
    assert gib(3 << 30) == "3.0 GiB"
    assert gib(1 << 20) == "1.0 MiB"


def test_groups_that_give_blocks_back_make_room_for_longer_requests() -> None:
    groups = [CacheGroup(16), CacheGroup(16, retained=31), CacheGroup(64, retained=1)]
    assert plan_cache(config(num_blocks=11), 64, groups, 1 << 10, 1 << 20).num_blocks == 11
    with pytest.raises(NotEnoughMemory, match=r"needs 69 blocks .* for one request of 1024 tokens, and 10 fit") as e:
        plan_cache(config(num_blocks=10), 1024, groups, 1 << 10, 1 << 20)
    assert "--max-model-len to 80 or less" in str(e.value)


FULL, STATE = FullAttentionCache(16, 1 << 10), RecurrentCache(0, 1 << 10)


@pytest.mark.parametrize(
    ("stages", "layers"),
    [
        ([[FULL] * 4], [[(0, 1, 2, 3)]]),
        ([[STATE, STATE, FULL, STATE] * 2], [[(0, 1), (3, 4), (5, 7), (2, 6)]]),
        ([[FULL] * 5 + [STATE] * 4], [[(0, 1, 2, 3, 4), (5, 6, 7, 8)]]),
        ([[STATE, FULL, STATE], [STATE, STATE, FULL]], [[(0,), (2,), (1,)], [(0,), (1,), (2,)]]),
        ([[FULL] * 2, [FULL]], [[(0, 1)], [(0,)]]),
    ],
)
def test_layers_of_a_kind_are_grouped_evenly_and_alike_on_all_stages(
    stages: list[list[CacheSpec]], layers: list[list[tuple[int, ...]]]
) -> None:
    formed = form_groups(stages, state_block_size=64)
    assert [[group.layers for group in groups] for groups in formed] == layers
    assert len({tuple(replace(group, layers=()) for group in groups) for groups in formed}) == 1


def test_rows_of_each_token_are_kept_in_blocks_of_attention() -> None:
    """A page has the rows of all its tokens, one tensor behind the other, each aligned."""
    tensors = StateTensor("latent", (6,), "bfloat16"), StateTensor("index", (3,), "bfloat16")
    rows = RowsCache.of(5, tensors)
    assert rows.page_bytes == 5 * 18
    assert [page.shape for page in rows.pages] == [(5, 6), (5, 3)]
    assert state_offsets(rows.pages) == [0, 64, 96]
    assert page_bytes([rows, rows]) == 96
    ((group,),) = form_groups([[rows, rows]], state_block_size=64)
    assert (group.block_size, group.retained, group.layers) == (5, None, (0, 1))
    assert FullAttentionCache(16, 32).pages == ()


def test_a_context_that_can_not_fit_is_refused_before_it_is_made() -> None:
    attention = (AttentionFacts(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64),)
    window = replace(attention[0], site="sliding_attention", sliding_window=8)
    facts = replace(FACTS, attention=(*attention, window), max_model_len=1000)
    check_context(facts, "bfloat16", 1_024_000)
    check_context(facts, "bfloat16", 512_000, share=0.5)
    check_context(replace(facts, attention=(window,)), "bfloat16", 1000)
    with pytest.raises(NotEnoughMemory, match="for one request of 1000 tokens") as caught:
        check_context(facts, "bfloat16", 1_023_999)
    assert caught.value.hint == "lower --max-model-len to 999 or less"


@pytest.mark.parametrize(
    ("cache", "path"),
    [
        ({"memory_gib": 24}, "cache.memory_gib"),
        ({"memory_gib": 23, "memory_share": 1}, ""),
        ({"memory_share": 1}, "cache.memory_share"),
        ({"memory_share": 1, "num_blocks": 100}, ""),
        ({}, ""),
    ],
)
def test_a_cache_that_takes_all_memory_is_refused(cache: dict[str, Any], path: str) -> None:
    device = PlatformFacts(name="a", arch="b", device_type="c", memory_bytes=24 << 30, device_name="A Card")
    found = cache_problems(CacheSection(**cache), device)
    assert [problem.path for problem in found] == ([path] if path else [])
    assert all(problem.path in problem.fix for problem in found)
    if path == "cache.memory_gib":
        assert found[0].message == "24 GiB for the cache, but A Card has only 24 GiB"
    assert cache_problems(CacheSection(**cache), replace(device, memory_bytes=0)) == [], "it is not known"
