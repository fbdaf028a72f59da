"""Scheduling policies: what they promise, and that none can do harm."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_device import make_core, run_alone

from llmk.api import Choice, Piece, PluginError, PolicyContext, SchedulingPolicy
from llmk.engine.core import EngineCore
from llmk.engine.policy import BuiltIn, GuardedPolicy
from llmk.engine.request import EngineRequest, SamplingParams, TokenOutput


def request(id_: str, prompt: list[int], tenant: str = "", *, priority: int = 0, new: int = 4) -> EngineRequest:
    params = SamplingParams(max_tokens=new)
    return EngineRequest(id=id_, prompt_token_ids=prompt, params=params, priority=priority, tenant=tenant)


def drain(core: EngineCore, limit: int = 5000) -> list[TokenOutput]:
    outputs = []
    for _ in range(limit):
        if not core.has_work:
            assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
            return outputs
        outputs += core.step().outputs
    raise AssertionError("the engine makes no progress")


def ends(outputs: list[TokenOutput]) -> list[str]:
    return [output.id for output in outputs if output.finish_reason]


class Urgent(BuiltIn):
    """The urgent displace the others."""

    def displaced(self, running, newcomer):
        victim = self.victim(running)
        return victim if victim.priority > newcomer.priority else None


def test_by_default_the_urgent_go_first_and_displace_nobody():
    core = make_core(max_num_seqs=1)
    core.add(request("early", [1], new=10, priority=1))
    core.step()
    for id_, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        core.add(request(id_, [2], new=1, priority=priority))
    assert ends(drain(core)) == ["early", "urgent", "first", "second", "late"]
    assert core.stats.preemptions == 0


def test_by_default_the_least_urgent_gives_way_when_blocks_run_out():
    core = make_core(num_blocks=6, block_size=4, max_num_seqs=2, max_model_len=24)
    core.add(request("low", [1] * 8, new=12, priority=1))
    core.add(request("high", [2] * 8, new=12))
    assert ends(drain(core)) == ["high", "low"]
    assert core.stats.preemptions > 0


class Circular(SchedulingPolicy):
    """Whoever comes displaces the eldest, who then comes again."""

    def __init__(self, context: PolicyContext) -> None: ...

    def order(self, requests):
        return requests[::-1]

    def victim(self, running):
        return running[0]

    def displaced(self, running, newcomer):
        return running[0]


@settings(deadline=None, max_examples=60)
@given(
    policy=st.sampled_from([BuiltIn, Circular]),
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=2, max_size=10),
    max_num_seqs=st.integers(1, 4),
    budget=st.integers(1, 12),
    num_blocks=st.integers(8, 12),
    depth=st.integers(1, 2),
)
def test_preemption_comes_to_an_end(policy, lengths, max_num_seqs, budget, num_blocks, depth):
    """Steps are bounded by what there is to compute: by each end, only so many others may give way in between."""
    core = make_core(
        num_blocks=num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=32,
        depth=depth, policy=policy(PolicyContext()),
    )  # fmt: skip
    for number, (length, new) in enumerate(lengths):
        core.add(request(str(number), [number] * length, str(number % 3), priority=number % 2, new=new))
    outputs = drain(core, limit=len(lengths) * (2 * max_num_seqs + 2) * 40)
    assert sorted(ends(outputs)) == sorted(str(number) for number in range(len(lengths)))
    assert core.stats.policy_failures == 0
    for number, (length, new) in enumerate(lengths):
        made = [token for output in outputs if output.id == str(number) for token in output.token_ids]
        assert made == run_alone([number] * length, new, limit=32)


class Broken(SchedulingPolicy):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def order(self, requests):
        if self.where == "order":
            raise ZeroDivisionError("no order")
        if self.where == "twice":
            return [requests[0], requests[0]]
        return requests[1:] if self.where == "leaves out" else requests

    def victim(self, running):
        return None if self.where == "victim" else running[-1]

    def displaced(self, running, newcomer):
        return newcomer if self.where == "displaced" else None

    def computed(self, request, num_tokens):
        if self.where == "computed":
            raise RuntimeError("no account")


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("order", "ZeroDivisionError: no order"),
        ("twice", "twice, or unasked"),
        ("victim", "victim() named None"),
        ("displaced", "displaced() named Ticket"),
        ("computed", "RuntimeError: no account"),
        ("leaves out", ""),
    ],
)
def test_a_policy_that_fails_is_reported_and_replaced(where, told, caplog):
    core = make_core(num_blocks=6, max_num_seqs=2, max_model_len=24, policy=Broken(where))
    for id_ in "abc":
        core.add(request(id_, [ord(id_) % 50] * 8, new=12))
    with caplog.at_level(logging.ERROR):
        outputs = drain(core)
    assert sorted(ends(outputs)) == ["a", "b", "c"]
    assert not any(output.error for output in outputs)
    records = [record for record in caplog.records if "scheduling policy test failed" in record.getMessage()]
    assert len(records) == core.stats.policy_failures == bool(told)
    assert all(told in record.getMessage() and record.exc_info for record in records)


def plan_of(implementation: str) -> Any:
    piece = Piece(1, 2, "acme.policy", "llmk-acme", "1.0", implementation, "", "", "")
    choice = Choice("policy", "scheduler", "", None, (piece,))
    return SimpleNamespace(choice=lambda kind, site: choice)


def test_a_policy_that_cannot_be_made_is_fatal_at_start():
    made = GuardedPolicy.load(plan_of("llmk.engine.policy:BuiltIn"), PolicyContext())
    assert made.name == "acme.policy of llmk-acme 1.0"
    with pytest.raises(PluginError, match=r"acme\.policy of llmk-acme 1\.0 can't be made"):
        GuardedPolicy.load(plan_of("builtins:int"), PolicyContext())
    with pytest.raises(PluginError, match="can't be loaded"):
        GuardedPolicy.load(plan_of("llmk.engine.unfair:Unfair"), PolicyContext())


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_takes_too_long_ends_with_what_it_has(depth):
    core = make_core(request_timeout=10, depth=depth)
    core.add(request("slow", [1, 2, 3], new=40))
    core.add(request("quick", [4], new=5))
    outputs = drain(core)
    assert set(ends(outputs)) == {"slow", "quick"}
    (slow,) = [output for output in outputs if output.error]
    assert (slow.id, slow.error_code, slow.finish_reason) == ("slow", "request_timeout", "error")
    assert "after 10.0 s it had" in slow.error
    assert core.stats.timeouts == 1


def test_a_request_that_is_not_begun_in_time_ends_and_one_that_was_may_wait_again():
    core = make_core(queue_timeout=10, max_num_seqs=1, policy=Urgent(PolicyContext()))
    core.add(request("low", [1], new=15, priority=1))
    core.step()
    core.add(request("high", [2], new=20))
    core.add(request("late", [3], new=1, priority=1))
    outputs = drain(core)
    assert [output.error_code for output in outputs if output.error] == ["queue_timeout"]
    assert ends(outputs) == ["late", "high", "low"]
    assert "scheduler.queue_timeout" in next(output.error for output in outputs if output.error)
