"""Prefixes that are found again, and pinned ones that stay."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from paged_device import make_core

from llmk.engine.cache.block_pool import BlockPool
from llmk.engine.cache.prefix_cache import PrefixCache
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.cache_groups import CacheGroup
from runs import KINDS, assert_empty, drain, request, tokens_of


def test_a_prefix_is_a_hit_once_computed_and_never_wholly():
    core = make_core()
    prompt = list(range(12))
    core.add(request("a", prompt, max_tokens=1))
    core.add(request("b", prompt, max_tokens=1))
    assert [o.num_cached_tokens for o in core.step().outputs] == [0]
    drain(core)
    core.add(request("c", prompt, max_tokens=1))
    assert [o.num_cached_tokens for o in core.step().outputs] == [8]


def test_a_prefix_that_is_being_computed_is_waited_for():
    core = make_core(max_num_batched_tokens=8)
    prompt = list(range(24))
    for id_ in "abc":
        core.add(request(id_, [*prompt, ord(id_)], max_tokens=1))
    core.add(request("other", [40], max_tokens=1))
    outputs = drain(core)
    assert core.runner.steps == [8, 8, 8, 2, 2, 0], "the last step only frees slots"
    assert {id_: o[0].num_cached_tokens for id_, o in outputs.items()} == {"a": 0, "b": 24, "c": 24, "other": 0}


def test_a_prefix_whose_computing_is_given_up_is_not_waited_for():
    core = make_core(max_num_batched_tokens=8)
    prompt = list(range(24))
    for id_ in "ab":
        core.add(request(id_, prompt, max_tokens=1))
    core.step()
    core.abort("a")
    outputs = drain(core)
    assert outputs["b"][0].num_cached_tokens == 8
    assert not core.scheduler.cache._computing


def test_salts_keep_prefixes_apart():
    core = make_core()
    prompt = list(range(12))
    for id_, salt, hit in (("a", "", 0), ("b", "x", 0), ("c", "x", 8), ("d", "", 8)):
        core.add(request(id_, prompt, max_tokens=1, salt=salt))
        (outputs,) = drain(core).values()
        assert outputs[0].num_cached_tokens == hit


def test_an_answer_is_a_hit_in_the_next_turn():
    core = make_core()
    core.add(request("a", [1, 2, 3], max_tokens=10))
    (outputs,) = drain(core).values()
    core.add(request("b", [1, 2, 3, *tokens_of(outputs), 4], max_tokens=1))
    (outputs,) = drain(core).values()
    assert outputs[0].num_cached_tokens == 12


def test_no_prefix_caching_means_no_hits():
    core = make_core(prefix_caching=False)
    for id_ in "ab":
        core.add(request(id_, list(range(12)), max_tokens=1))
        (outputs,) = drain(core).values()
        assert outputs[0].num_cached_tokens == 0


@pytest.mark.parametrize("kinds", sorted(KINDS))
def test_a_pinned_prefix_is_a_hit_no_matter_which_requests_came_between(kinds):
    groups, states = KINDS[kinds](4)
    core = make_core(num_blocks=40, groups=groups, states=states, max_model_len=64)
    prefix = [7, 8, 9, 1] * 8
    core.add(EngineRequest(id="pin", prompt_token_ids=prefix, params=SamplingParams(max_tokens=1), pin="p"))
    ((pinned,),) = drain(core).values()
    assert pinned.num_pinned_tokens == 32
    for i in range(12):
        core.add(request(f"flood{i}", [i] * 40, max_tokens=8))
    drain(core)
    core.add(request("late", [*prefix, 3], max_tokens=2))
    assert drain(core)["late"][0].num_cached_tokens == 32
    core.unpin(["p"])
    assert_empty(core)


def test_a_pin_ends_with_its_time_or_by_another_of_its_id():
    core = make_core(num_blocks=40)
    for id_, pin, seconds in (("a", "p", 9.0), ("b", "q", 0.0), ("c", "q", 0.0)):
        prompt = [ord(id_)] * 9
        core.add(
            EngineRequest(
                id=id_, prompt_token_ids=prompt, params=SamplingParams(max_tokens=1), pin=pin, pin_seconds=seconds
            )
        )
        drain(core)
    assert core.stats.pinned_blocks == 4, "b's blocks were evicted for c's"
    core.add(request("d", [1], max_tokens=9))
    drain(core)
    assert core.stats.pinned_blocks == 2
    core.unpin(["q"])
    assert_empty(core)


def test_what_is_too_large_to_pin_is_refused_and_a_pin_is_evicted_before_a_request_fails():
    core = make_core(num_blocks=8, max_model_len=33)
    core.add(EngineRequest(id="a", prompt_token_ids=[1] * 20, params=SamplingParams(max_tokens=1), pin="p"))
    ((refused,),) = drain(core).values()
    assert refused.error_code == "invalid_request_error"
    assert "more than is left of the 4 blocks" in refused.error
    core.add(EngineRequest(id="b", prompt_token_ids=[1] * 16, params=SamplingParams(max_tokens=1), pin="p"))
    drain(core)
    assert core.stats.pinned_blocks == 4
    core.add(request("c", [2] * 10, max_tokens=22))
    assert len(tokens_of(drain(core)["c"])) == 22
    assert core.stats.pinned_blocks == 0


def test_adapters_share_no_prefix_with_each_other_nor_with_any_salt() -> None:
    cache = PrefixCache(BlockPool(4, 1), [CacheGroup(4)])
    keys = [cache.first_key(salt, adapter) for salt in ("", "a", "a\0\0\0\0\0\0\0\1") for adapter in (0, 1, 2)]
    assert len(set(keys)) == len(keys)


def test_a_request_reuses_the_prefixes_of_its_adapter() -> None:
    core = make_core()
    prompt, hits = list(range(12)), []
    for number, adapter in enumerate((0, 1, 2, 1, 0)):
        core.add(replace(request(str(number), prompt, max_tokens=1), adapter=adapter))
        hits.append(drain(core)[str(number)][0].num_cached_tokens)
    assert hits == [0, 0, 0, 8, 8]
