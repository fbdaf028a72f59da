"""Prefixes that are found again, and pinned ones that stay."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from paged_device import make_core

from llmk.engine.cache import pinned_blocks
from llmk.engine.cache.prefix_keys import first_key
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from runs import KINDS, assert_consistent, assert_empty, drain, request, tokens_of


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


def prefixed(core, id_, prompt, *prefixes, tenant="t"):
    """Runs a request that pins prefixes of its prompt; returns how much of each is pinned."""
    context = RequestContext(id_, tenant=tenant, prefixes=prefixes)
    core.add(EngineRequest(id=id_, context=context, prompt_token_ids=prompt, params=SamplingParams(max_tokens=2)))
    (first, *others) = drain(core)[id_]
    assert not any(output.pinned_prefixes for output in others)
    assert_consistent(core)
    return list(first.pinned_prefixes)


def test_prefixes_of_requests_are_pinned_as_far_as_they_fill_blocks():
    core = make_core(num_blocks=100, tenant_pin_share=0.1)
    prompt = list(range(40))
    assert prefixed(core, "a", prompt, (10, 50.0), (23, 9.0)) == [8, 20]
    assert core.stats.pinned_blocks == 2 + 5
    assert prefixed(core, "b", prompt[:30], (20, 9.0)) == [20]
    assert core.stats.pinned_blocks == 2 + 5, "the same prefix is pinned once"
    assert prefixed(core, "c", prompt, (28, 9.0)) == [28]
    assert core.stats.pinned_blocks == 2 + 7, "a longer one takes the place of its start"
    core.add(request("d", [1], max_tokens=20))
    drain(core)
    assert core.stats.pinned_blocks == 2
    core.add(request("e", [1], max_tokens=60))
    drain(core)
    assert core.stats.pinned_blocks == 0


def test_a_tenant_pins_no_more_than_its_share_and_loses_its_oldest():
    core = make_core(num_blocks=100, tenant_pin_share=0.1, pin_share=0.15)
    for number in range(3):
        assert prefixed(core, f"a{number}", [number] * 17, (16, 900.0)) == [16]
    assert core.stats.pinned_blocks == 8
    assert [pin.tenant for pin in core.scheduler.pins._prefixes] == ["t", "t"]
    assert prefixed(core, "large", [9] * 60, (48, 900.0)) == [0], "more than a tenant's share"
    assert prefixed(core, "other", [8] * 30, (28, 900.0), tenant="u") == [28]
    assert core.stats.pinned_blocks == 15
    assert prefixed(core, "third", [7] * 9, (8, 900.0), tenant="v") == [0], "no more than all pins may hold"
    assert core.stats.pinned_blocks == 15


def test_a_tenant_has_so_many_pins(monkeypatch):
    monkeypatch.setattr(pinned_blocks, "MOST_PREFIXES", 3)
    core = make_core(num_blocks=100, tenant_pin_share=0.5)
    for number in range(9):
        assert prefixed(core, f"a{number}", [number] * 5, (4, 900.0)) == [4]
    assert core.stats.pinned_blocks == 3


def test_an_operators_pin_comes_before_those_of_clients():
    core = make_core(num_blocks=40, tenant_pin_share=0.5, pin_share=0.5)
    assert prefixed(core, "a", [1] * 61, (60, 900.0)) == [60]
    pin = EngineRequest(id="pin", prompt_token_ids=[2] * 33, params=SamplingParams(max_tokens=1), pin="p")
    core.add(pin)
    ((pinned,),) = drain(core).values()
    assert pinned.num_pinned_tokens == 32
    assert core.stats.pinned_blocks == 8
    assert core.stats.pins == ["p"]


def test_pins_of_clients_go_before_a_request_fails():
    core = make_core(num_blocks=8, max_model_len=33, tenant_pin_share=0.5)
    assert prefixed(core, "a", [1] * 17, (16, 900.0)) == [16]
    core.add(request("c", [2] * 10, max_tokens=22))
    assert len(tokens_of(drain(core)["c"])) == 22
    assert core.stats.pinned_blocks == 0


def test_adapters_share_no_prefix_with_each_other_nor_with_any_salt() -> None:
    keys = [first_key(salt, adapter) for salt in ("", "a", "a\0\0\0\0\0\0\0\1") for adapter in (0, 1, 2)]
    assert len(set(keys)) == len(keys)


def test_a_request_reuses_the_prefixes_of_its_adapter() -> None:
    core = make_core()
    prompt, hits = list(range(12)), []
    for number, adapter in enumerate((0, 1, 2, 1, 0)):
        core.add(replace(request(str(number), prompt, max_tokens=1), adapter=adapter))
        hits.append(drain(core)[str(number)][0].num_cached_tokens)
    assert hits == [0, 0, 0, 8, 8]
