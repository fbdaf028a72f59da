"""Scheduling policies: what they promise, and that none can do harm."""

from __future__ import annotations

import logging
from signal import SIG_IGN, default_int_handler
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import check_preemption_ends, drain, ends, request, tight_loads
from paged_device import make_core

from llmk.api import Choice, Piece, PluginError, PolicyContext, SchedulingPolicy, Ticket
from llmk.engine.scheduling.fair_policy import FairPolicy
from llmk.engine.scheduling.guarded_policy import GuardedPolicy


class Urgent(FairPolicy):
    """The urgent displace the others."""

    def displaced(self, running, newcomer):
        victim = self.victim(running)
        return victim if victim.priority > newcomer.priority else None


def test_by_default_urgent_requests_go_first_and_preempt_no_others():
    core = make_core(max_num_seqs=1)
    core.add(request("early", [1], new=10, priority=1))
    core.step()
    for id_, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        core.add(request(id_, [2], new=1, priority=priority))
    assert ends(drain(core)) == ["early", "urgent", "first", "second", "late"]
    assert core.stats.preemptions == 0


def test_by_default_the_least_urgent_is_preempted_when_blocks_run_out():
    core = make_core(num_blocks=6, max_num_seqs=2, max_model_len=24)
    core.add(request("low", [1] * 8, new=12, priority=1))
    core.add(request("high", [2] * 8, new=12))
    assert ends(drain(core)) == ["high", "low"]
    assert core.stats.preemptions > 0


@pytest.mark.parametrize("priority", [0, -(2**31)])
def test_by_default_no_tenant_waits_for_another_tenants_flood(priority):
    """However many there are of them, and however urgent they say that they are."""
    core = make_core(max_num_seqs=4, num_blocks=64)
    for number in range(40):
        core.add(request(f"flood{number}", [number], "flood", priority=priority, new=30))
    core.step()
    core.add(request("quiet", [1, 2], "quiet", new=2))
    outputs = [output for _ in range(3) for output in core.step().outputs]
    assert ends(outputs) == ["quiet"]
    assert len(ends(drain(core))) == 40


def test_by_default_a_newcomers_long_prompts_take_turns_with_short_ones():
    """A tenant that has been served for long does not wait until a new one has caught up."""
    policy = FairPolicy(PolicyContext(step_tokens=2048))
    served = Ticket("before", 0, "quiet", 0, 3, 20)
    next(policy.order([served]))
    policy.computed(served, 5000)
    flood = [Ticket(f"flood{number}", 1 + number, "flood", 0, 950, 951) for number in range(8)]
    assert next(policy.order(flood)).tenant == "flood"
    policy.computed(flood[0], 16)
    quiet = Ticket("again", 9, "quiet", 0, 3, 20)
    assert next(policy.order([*flood, quiet])) is quiet


def test_by_default_a_tenant_is_served_by_its_share():
    core = make_core(max_num_seqs=4, num_blocks=64, policy=FairPolicy(PolicyContext({"big": 3.0}, 16)))
    for number in range(40):
        for tenant in ("big", "small"):
            core.add(request(f"{tenant}{number}", [number, ord(tenant[0]) % 50], tenant, new=12))
    counts = {"big": 0, "small": 0}
    for _ in range(80):
        for output in core.step().outputs:
            counts[output.id.rstrip("0123456789")] += len(output.token_ids)
    assert 2.4 < counts["big"] / counts["small"] < 3.6


class Circular(SchedulingPolicy):
    """Each newcomer displaces the oldest, which then comes again."""

    def __init__(self, context: PolicyContext) -> None: ...

    def order(self, requests):
        return requests[::-1]

    def victim(self, running):
        return running[0]

    def displaced(self, running, newcomer):
        return running[0]


@settings(deadline=None, max_examples=60)
@given(policy=st.sampled_from([FairPolicy, Circular]), load=tight_loads())
def test_preemption_comes_to_an_end(policy, load):
    check_preemption_ends(policy(PolicyContext()), load)


class Broken(SchedulingPolicy):
    """Fails in the method that it is given."""

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
    ("where", "logged"),
    [
        ("order", "ZeroDivisionError: no order"),
        ("twice", "twice, or it was not"),
        ("victim", "victim() returned None"),
        ("displaced", "displaced() returned Ticket"),
        ("computed", "RuntimeError: no account"),
        ("leaves out", ""),
    ],
)
def test_a_policy_that_fails_is_reported_and_replaced(where, logged, caplog):
    core = make_core(num_blocks=6, max_num_seqs=2, max_model_len=24, policy=Broken(where))
    for id_ in "abc":
        core.add(request(id_, [ord(id_) % 50] * 8, new=12))
    with caplog.at_level(logging.ERROR):
        outputs = drain(core)
    assert sorted(ends(outputs)) == ["a", "b", "c"]
    assert not any(output.error for output in outputs)
    records = [record for record in caplog.records if "scheduling policy test failed" in record.getMessage()]
    assert len(records) == core.stats.policy_failures == bool(logged)
    assert all(logged in record.getMessage() and record.exc_info for record in records)


class Bare:
    """Follows the protocol without being derived from it, and has what it needs alone."""

    def __init__(self, context: PolicyContext) -> None: ...

    def order(self, requests):
        return requests[::-1]


def test_a_policy_need_not_have_the_methods_that_it_does_not_need():
    core = make_core(num_blocks=6, max_num_seqs=2, max_model_len=24, policy=Bare(PolicyContext()))
    for id_ in "abc":
        core.add(request(id_, [ord(id_) % 50] * 8, new=12))
    outputs = drain(core)
    assert sorted(ends(outputs)) == ["a", "b", "c"]
    assert not any(output.error for output in outputs)
    assert core.stats.preemptions > 0
    assert core.stats.policy_failures == 0


class NoPolicy:
    order = "by arrival"

    def __init__(self, context: PolicyContext) -> None: ...


def test_what_is_no_policy_is_refused_when_it_is_loaded():
    with pytest.raises(PluginError, match=r"the implementation of acme\.policy, .*\n.*order = 'by arrival'"):
        GuardedPolicy.load(plan_of(f"{__name__}:NoPolicy"), PolicyContext())
    with pytest.raises(PluginError, match=r"no order\(requests\); no victim\(.*; no displaced\(.*; no computed\("):
        GuardedPolicy.load(plan_of("builtins:id"), PolicyContext())


class AlwaysEqual:
    """Is equal to everything."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


@pytest.mark.parametrize(
    "answer",
    [AlwaysEqual(), [], {"a": 1}, SystemExit(3), KeyboardInterrupt(), GeneratorExit(), 7],
    ids=lambda answer: type(answer).__name__,
)
@pytest.mark.parametrize("method", ["order", "victim", "displaced", "computed"])
def test_no_policy_can_fail_a_request(method, answer, caplog, monkeypatch):
    """Anything that it raises or returns, interrupts included: here, as in an engine's process, they are not the
    user's."""
    monkeypatch.setattr("signal.getsignal", lambda number: SIG_IGN)

    class Nonsense(SchedulingPolicy):
        def __init__(self, context: PolicyContext) -> None: ...

    def nonsense(self, *arguments):
        if isinstance(answer, BaseException):
            raise answer
        return [answer] if method == "order" else answer

    setattr(Nonsense, method, nonsense)
    core = make_core(num_blocks=6, max_num_seqs=2, max_model_len=24, policy=Nonsense(PolicyContext()))
    for id_ in "abc":
        core.add(request(id_, [ord(id_) % 50] * 8, new=12))
    outputs = drain(core)
    assert sorted(ends(outputs)) == ["a", "b", "c"]
    assert not any(output.error for output in outputs)
    assert core.stats.policy_failures == (method != "computed" or isinstance(answer, BaseException))


def test_an_interruption_of_the_user_is_no_failure_of_the_policy(monkeypatch):
    # As in a foreground process, however the tests were started.
    monkeypatch.setattr("signal.getsignal", lambda number: default_int_handler)

    class Interrupted(FairPolicy):
        def order(self, requests):
            raise KeyboardInterrupt

    core = make_core(policy=Interrupted(PolicyContext()))
    core.add(request("a", [1]))
    with pytest.raises(KeyboardInterrupt):
        core.step()


def plan_of(implementation: str) -> Any:
    piece = Piece(1, 2, "acme.policy", "llmk-acme", "1.0", implementation, "", "", "")
    choice = Choice("policy", "scheduler", "", None, (piece,))
    return SimpleNamespace(choice=lambda kind, site: choice)


class Unmade(Bare):
    def __init__(self, context: PolicyContext) -> None:
        raise OSError("no weights")


def test_a_policy_that_cannot_be_made_is_fatal_at_start():
    made = GuardedPolicy.load(plan_of("llmk.engine.scheduling.fair_policy:FairPolicy"), PolicyContext())
    assert made.name == "acme.policy of llmk-acme 1.0"
    with pytest.raises(PluginError, match=r"acme\.policy of llmk-acme 1\.0 can't be made"):
        GuardedPolicy.load(plan_of(f"{__name__}:Unmade"), PolicyContext())
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


def test_a_request_that_is_not_started_in_time_ends_and_one_that_was_may_wait_again():
    core = make_core(queue_timeout=10, max_num_seqs=1, policy=Urgent(PolicyContext()))
    core.add(request("low", [1], new=15, priority=1))
    core.step()
    core.add(request("high", [2], new=20))
    core.add(request("late", [3], new=1, priority=1))
    outputs = drain(core)
    assert [output.error_code for output in outputs if output.error] == ["queue_timeout"]
    assert ends(outputs) == ["late", "high", "low"]
    assert "scheduler.queue_timeout" in next(output.error for output in outputs if output.error)
