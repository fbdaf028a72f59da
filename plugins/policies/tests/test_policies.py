"""What the policies promise: fair shares, urgency, and preemption that comes to an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import check_preemption_ends, drain, ends, request, tight_loads
from paged_device import make_core

from llmk.api import PolicyContext
from llmk_policies.fair import Fair
from llmk_policies.fcfs import Fcfs
from llmk_policies.priority import Priority


def first_token_steps(*, flood: int, quiet_every: int = 20, steps: int = 600, **options: Any) -> list[int]:
    """Steps to the first token of each request of a client that sends one every ``quiet_every`` steps, together with
    one that sends ``flood`` as many.
    """
    core = make_core(policy=Fair(PolicyContext(step_tokens=16)), num_blocks=48, max_num_seqs=6, **options)
    sent: dict[str, int] = {}
    first: dict[str, int] = {}
    owed = 0.0
    for step in range(steps):
        owed += flood / quiet_every
        while owed >= 1:
            owed -= 1
            core.add(request(f"f{step}.{owed:.1f}", [step % 50, int(owed)] * 4, "flood", new=8))
        if step % quiet_every == 7:
            sent[f"q{step}"] = step
            core.add(request(f"q{step}", [step % 50, 1] * 3, "quiet", new=8))
        for output in core.step().outputs:
            first.setdefault(output.id, step)
    return sorted(first.get(id_, steps) - at + 1 for id_, at in sent.items() if at < steps - 50)


@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"prefix_caching": False}])
def test_a_flood_does_not_starve_a_quiet_client(options):
    alone, flooded = (first_token_steps(flood=flood, **options) for flood in (0, 50))
    at = int(0.95 * len(alone))
    assert len(flooded) == len(alone) > 20
    assert flooded[at] <= 2 * alone[at]


def served_shares(weights: dict[str, float], tenants: str, steps: int = 60) -> dict[str, int]:
    """Tokens per tenant over some steps, where all have more to do than can be done."""
    core = make_core(policy=Fair(PolicyContext(weights, 16)), num_blocks=64, max_num_seqs=4 * len(tenants))
    for number in range(80):
        for tenant in tenants:
            core.add(request(f"{tenant}{number}", [number % 50, ord(tenant) % 50] * 2, tenant, new=12))
    made = dict.fromkeys(tenants, 0)
    for _ in range(steps):
        for output in core.step().outputs:
            made[output.id[0]] += len(output.token_ids)
    assert core.scheduler.waiting
    return made


def test_shares_follow_weights():
    even = served_shares({}, "ab")
    assert even["a"] == pytest.approx(even["b"], rel=0.1)
    weighted = served_shares({"a": 3.0}, "ab")
    assert 2.4 < weighted["a"] / weighted["b"] < 3.6


def test_idle_time_is_credit_for_one_step_only():
    policy = Fair(PolicyContext(step_tokens=16))
    core = make_core(policy=policy, max_num_seqs=1)
    for number in range(20):
        core.add(request(f"a{number}", [number], "a", new=20))
    for _ in range(200):
        core.step()
    used = policy._used["a"]
    for number in range(10):
        core.add(request(f"b{number}", [number, 1], "b", new=5))
    core.step()
    core.step()
    assert policy._used["b"] >= used - 20
    drain(core)


def test_tenants_without_claim_are_forgotten():
    policy = Fair(PolicyContext(step_tokens=1))
    core = make_core(policy=policy)
    for number in range(3000):
        core.add(request(f"r{number}", [number % 50], f"t{number}", new=1))
        core.step()
    drain(core)
    assert len(policy._used) < 1100


def test_urgent_requests_displace_others_but_not_equals():
    core = make_core(max_num_seqs=2, policy=Priority(PolicyContext()))
    for id_ in "ab":
        core.add(request(id_, [1, ord(id_) % 50], new=30, priority=1))
    core.step()
    core.add(request("equal", [3], new=1, priority=1))
    core.step()
    assert core.stats.preemptions == 0
    core.add(request("urgent", [4], new=1, priority=-1))
    outputs = core.step().outputs
    assert "urgent" in ends(outputs)
    assert core.stats.preemptions == 1
    outputs += drain(core)
    assert ends(outputs)[:2] == ["urgent", "a"] or ends(outputs)[:2] == ["urgent", "equal"]


def test_requests_that_need_blocks_displace_too():
    core = make_core(num_blocks=8, max_num_seqs=4, max_model_len=32, policy=Priority(PolicyContext()))
    core.add(request("low", [1] * 13, new=8, priority=5))
    core.step()
    core.add(request("high", [2] * 20, new=1))
    order = ends(drain(core))
    assert order == ["high", "low"]


def test_first_come_first_served_ignores_priorities():
    core = make_core(max_num_seqs=1, policy=Fcfs(PolicyContext()))
    for id_, priority in (("a", 2), ("b", 0), ("c", 1)):
        core.add(request(id_, [1], new=2, priority=priority))
    assert ends(drain(core)) == ["a", "b", "c"]


@settings(deadline=None, max_examples=60)
@given(policy=st.sampled_from([Fcfs, Priority, Fair]), load=tight_loads())
def test_preemption_comes_to_an_end(policy, load):
    check_preemption_ends(policy(PolicyContext()), load)
