"""The scheduler on a device that notices every wrong block: random loads come out as if each sequence had run alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_device import VOCAB, Always, Foresight, PagedDevice, Thirds, make_core, run_alone

from llmk.api import PolicyContext, SchedulingPolicy, Ticket
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.scheduling.fair_policy import FairPolicy
from llmk.engine.text.guarded_grammar import GuardedGrammar
from llmk.engine.wire.request import EngineRequest, RequestContext, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.cache_groups import CacheGroup
from runs import KINDS, assert_consistent, assert_empty, drain, request, tokens_of


class Erratic(SchedulingPolicy):
    """Orders, preempts and displaces at random: what it does must cost time alone."""

    def __init__(self, context: PolicyContext) -> None:
        self.random = Random(len(context.weights))

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return self.random.sample(requests, len(requests))

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        return self.random.choice(running)

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        return self.random.choice([*running, None])


class Failing(Erratic):
    """Does wrong, sooner or later."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        for ticket in super().order(requests):
            yield ticket
            if self.random.random() < 0.1:
                raise ZeroDivisionError

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        return self.random.choice([*running, "unknown"])


def longest(num_blocks: int, groups: Sequence[CacheGroup], chunked: bool) -> int:
    """The longest sequence that the cache can hold."""
    lengths = range(1, 1 + 64 * num_blocks)
    needed = [sum(group.most_held(n, 1 if chunked else n) for group in groups) for n in lengths]
    return min(max([n for n, blocks in zip(lengths, needed, strict=True) if blocks <= num_blocks], default=1), 128)


def settled(a: dict[str, Any]) -> dict[str, Any]:
    """An arrival whose wishes go together: what wants something of its prompt alone samples nothing."""
    delivered = a["delivered"] % len(a["prompt"]) if a["returns"] == "hidden" else 0
    if a["returns"] == "tokens":
        return {**a, "delivered": delivered}
    scored = 0 if a["returns"] == "prompt_logprobs" else None
    return {**a, "delivered": delivered, "max_tokens": 1, "pin": "", "scored": scored}


def wanted_of(a: dict[str, Any], outputs: Sequence[TokenOutput], limit: int) -> list[int]:
    """The tokens that a sequence must come to. Its hidden states, which the device makes up, must have come, each once
    and in order, up to its end."""
    found: list[int] = []
    for rows in [output.hidden for output in outputs if output.hidden is not None]:
        assert not found or rows.start == a["delivered"] + len(found)
        found += rows.data
    wanted = {"hidden": a["prompt"][a["delivered"] :], "last_hidden": a["prompt"][-1:]}.get(a["returns"], [])
    assert found == wanted[: len(found)]
    assert found == wanted or not any(output.finish_reason == "stop" for output in outputs)
    if a["returns"] != "tokens":
        assert a["returns"] == "prompt_logprobs" or not any(output.prompt_logprobs for output in outputs)
        return []
    return run_alone(
        a["prompt"],
        a["max_tokens"],
        limit=limit,
        stops=tuple(a["stop"]),
        seed=a["seed"],
        grammar=Thirds() if a["masked"] else None,
    )


def drafting_of(drafts: tuple[str, int] | None, arrivals: Sequence[dict[str, Any]]) -> Drafting | None:
    """On the host or on the device, at most so many tokens, some of which are right."""
    if drafts is None:
        return None
    speculator = Foresight()
    speculator.seeds = {str(i): a["seed"] for i, a in enumerate(arrivals)}
    return Drafting(Always(drafts[1]), VOCAB, speculator if drafts[0] == "host" else None)


POLICIES = [FairPolicy, Erratic, Failing]
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=30)
shared = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 40), max_size=8)).map(
    lambda pair: [7, 8, 9, 1] * pair[0] * 2 + pair[1] or [5]
)
arrival = st.fixed_dictionaries(
    {
        "prompt": prompts | shared,
        "max_tokens": st.integers(1, 25),
        "stop": st.sets(st.integers(0, 49), max_size=3),
        "seed": st.integers(0, 2),
        "priority": st.integers(0, 1),
        "salt": st.sampled_from(["", "", "a"]),
        "tenant": st.sampled_from(["", "x", "y"]),
        "scored": st.sampled_from([None, None, 0]),
        "returns": st.sampled_from(["tokens", "tokens", "tokens", "prompt_logprobs", "hidden", "last_hidden"]),
        "delivered": st.integers(0, 5),
        "pin": st.sampled_from(["", "", "", "p", "q"]),
        "at": st.integers(0, 20),
        "masked": st.sampled_from([False, False, True]),
        "abort_at": st.none() | st.none() | st.integers(0, 40),
    }
).map(settled)


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(
    arrivals=st.lists(arrival, min_size=1, max_size=12),
    num_blocks=st.integers(4, 24),
    kinds=st.sampled_from(sorted(KINDS)),
    block_size=st.sampled_from([1, 3, 4]),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(1, 20),
    prefix_caching=st.booleans(),
    chunked=st.booleans(),
    depth=st.integers(1, 4),
    stages=st.sampled_from([1, 1, 2, 3]),
    policy=st.sampled_from(POLICIES),
    queue_timeout=st.sampled_from([0, 0, 10]),
    request_timeout=st.sampled_from([0, 0, 20]),
    drafts=st.sampled_from([None, None, ("host", 1), ("host", 4), ("device", 2), ("device", 5)]),
)
def test_any_load_comes_out_as_if_alone(
    arrivals,
    num_blocks,
    kinds,
    block_size,
    max_num_seqs,
    budget,
    prefix_caching,
    chunked,
    depth,
    stages,
    policy,
    queue_timeout,
    request_timeout,
    drafts,
):
    groups, states = KINDS[kinds](block_size)
    room = longest(num_blocks, groups, chunked)
    core = make_core(
        num_blocks=num_blocks,
        groups=groups,
        states=states,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=room,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked,
        depth=depth,
        policy=policy(PolicyContext({"x": 3.0})),
        queue_timeout=queue_timeout,
        request_timeout=request_timeout,
        drafting=drafting_of(drafts, arrivals),
        stages=stages,
    )
    outputs: dict[str, list[TokenOutput]] = {}
    aborted: dict[str, int] = {}
    for step in range(3000):
        for i, a in enumerate(arrivals):
            if a["at"] == step:
                core.scheduler.add(
                    EngineRequest(
                        id=str(i),
                        context=RequestContext(tenant=a["tenant"], priority=a["priority"], cache_salt=a["salt"]),
                        prompt_token_ids=a["prompt"],
                        params=SamplingParams(
                            max_tokens=a["max_tokens"], stop_token_ids=tuple(a["stop"]), prompt_logprobs=a["scored"]
                        ),
                        seed=a["seed"],
                        pin=a["pin"],
                        pin_seconds=float(a["at"] % 7),
                        returns=a["returns"],
                        num_delivered=a["delivered"],
                    ),
                    grammar=GuardedGrammar(Thirds(), "test.thirds") if a["masked"] else None,
                )
            if a["abort_at"] == step and a["at"] <= step:
                core.abort([str(i)])
                aborted[str(i)] = len(outputs.get(str(i), []))
        if step > 40 and not core.has_work:
            break
        for output in core.step().outputs:
            outputs.setdefault(output.id, []).append(output)
        assert_consistent(core)
    else:
        raise AssertionError("the engine makes no progress")
    core.unpin(["p", "q"])
    assert_empty(core)
    for i, a in enumerate(arrivals):
        mine = outputs.get(str(i), [])
        ends = [output for output in mine if output.finish_reason]
        expected = wanted_of(a, mine, room)
        if len(a["prompt"]) >= room:
            assert len(mine) <= 1
            assert not mine or mine[0].error_code == "invalid_request_error"
        elif ends and ends[0].error_code in ("queue_timeout", "request_timeout"):
            assert mine[-1] is ends[0]
            assert len(ends) == 1
            assert tokens_of(mine) == expected[: len(tokens_of(mine))]
            assert len(mine) == 1 or ends[0].error_code == "request_timeout"
        elif ends and "can't be pinned" in ends[0].error:
            assert a["pin"]
            assert tokens_of(mine) == expected[: len(tokens_of(mine))]
        elif str(i) in aborted and not ends:
            assert len(mine) == aborted[str(i)]
            assert tokens_of(mine) == expected[: len(tokens_of(mine))]
        else:
            scored = [-entry.logprob for output in mine for entry in output.prompt_logprobs]
            assert scored == ([] if a["scored"] is None else list(range(1, len(a["prompt"]))))
            assert len(mine[0].prompt_logprobs) == len(scored), "they come with the first token"
            assert len(ends) == 1
            assert mine[-1] is ends[0]
            assert ends[0].error == ""
            assert tokens_of(mine) == expected


def test_prompts_are_chunked_alongside_decodes():
    core = make_core(max_num_batched_tokens=6)
    core.add(request("short", [1], max_tokens=20))
    core.step()
    core.add(request("long", list(range(20)), max_tokens=1))
    outputs = drain(core)
    assert core.runner.steps[1:5] == [6, 6, 6, 6]
    assert len(outputs["short"]) == 19
    assert len(outputs["long"]) == 1


def test_whole_prompts_may_exceed_the_issue_limit_but_not_the_run_limit():
    core = make_core(max_num_batched_tokens=6, chunked_prefill=False, max_model_len=40)
    core.add(request("a", list(range(20)), max_tokens=3))
    core.add(request("b", list(range(30, 39)), max_tokens=3))
    outputs = drain(core)
    assert core.runner.steps[0] == 20
    assert {id_: len(o) for id_, o in outputs.items()} == {"a": 3, "b": 3}
    assert core.scheduler.max_run_tokens == 40


def test_priority_goes_before_arrival():
    core = make_core(max_num_seqs=1, policy=FairPolicy())
    core.add(request("late", [1], max_tokens=1, priority=1))
    core.add(request("soon", [2], max_tokens=1, priority=0))
    assert list(drain(core)) == ["soon", "late"]


def test_the_latest_is_preempted_when_blocks_run_out():
    core = make_core(num_blocks=6, max_model_len=24)
    core.add(request("a", [1] * 8, max_tokens=12))
    core.add(request("b", [2] * 8, max_tokens=12))
    outputs = drain(core)
    assert core.stats.preemptions == 1
    assert tokens_of(outputs["a"]) == run_alone([1] * 8, 12, limit=24)
    assert tokens_of(outputs["b"]) == run_alone([2] * 8, 12, limit=24)
    assert_empty(core)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no tokens"),
        ([1] * 64, "the 64 tokens of the prompt fill the model's context of 64"),
        ([1] * 40, "need 10 blocks, the cache has 8"),
    ],
)
def test_what_can_never_fit_fails_at_once(prompt, message):
    core = make_core(num_blocks=8)
    core.add(request("a", prompt))
    (outputs,) = drain(core).values()
    assert outputs[0].finish_reason == "error"
    assert message in outputs[0].error


def test_a_sequence_that_outgrows_the_cache_alone_fails_with_what_it_made():
    core = make_core(num_blocks=2)
    core.add(request("a", [1] * 5, max_tokens=20))
    (outputs,) = drain(core).values()
    assert len(tokens_of(outputs)) == 4
    assert "fill the cache of 2 blocks" in outputs[-1].error
    assert_empty(core)


def test_ends():
    core = make_core(max_model_len=12)
    first, second = run_alone([1], 2, limit=12)
    assert first != second
    eos = EngineRequest(id="eos", prompt_token_ids=[1], params=SamplingParams(), eos_token_ids=(second,))
    core.add(eos)
    on = EngineRequest(id="on", prompt_token_ids=[1], params=SamplingParams(ignore_eos=True), eos_token_ids=(first,))
    core.add(on)
    core.add(request("stop", [1], stop_token_ids=(second,)))
    core.add(request("least", [1], stop_token_ids=(first,), min_tokens=2, max_tokens=3))
    core.add(request("length", [1], max_tokens=2))
    ends = {id_: (len(o), o[-1].finish_reason, o[-1].stop_token_id) for id_, o in drain(core).items()}
    assert ends["eos"] == (2, "stop", None)
    assert ends["on"][1:] == ("length", None)
    assert ends["stop"] == (2, "stop", second)
    assert ends["least"][0] > 1
    assert ends["length"] == (2, "length", None)


def test_a_failing_step_ends_its_sequences_with_the_cause_and_the_engine_goes_on():
    core = make_core(max_num_seqs=1)

    def explode(plan):
        if any(new.id == "bad" for new in plan.new):
            raise ZeroDivisionError("no luck")

    core.runner.before_step = explode
    core.add(request("bad", [1, 2, 3, 4, 5], max_tokens=3))
    core.add(request("good", [1, 2, 3, 4, 5], max_tokens=3))
    outputs = drain(core)
    assert [o.finish_reason for o in outputs["bad"]] == ["error"]
    assert outputs["bad"][0].error == "ZeroDivisionError: no luck"
    assert tokens_of(outputs["good"]) == run_alone([1, 2, 3, 4, 5], 3, limit=64)
    assert outputs["good"][0].num_cached_tokens == 0
    assert_empty(core)


def test_logprobs_go_to_those_who_asked():
    core = make_core()
    core.add(request("a", [1], max_tokens=2, logprobs=2))
    core.add(request("b", [1], max_tokens=2))
    outputs = drain(core)
    assert [len(o.logprobs) for o in outputs["a"]] == [1, 1]
    assert outputs["a"][0].logprobs[0].token_id == outputs["a"][0].token_ids[0]
    assert not any(o.logprobs for o in outputs["b"])


def test_prompts_that_are_scored_take_no_hits_and_leave_some():
    core = make_core()
    prompt = list(range(20))
    core.add(request("first", prompt, max_tokens=1))
    drain(core)
    core.add(request("scored", prompt, max_tokens=1, prompt_logprobs=0))
    core.add(request("again", [*prompt, 3], max_tokens=1))
    outputs = drain(core)
    assert [e.token_id for e in outputs["scored"][0].prompt_logprobs] == prompt[1:]
    assert outputs["scored"][0].num_cached_tokens == 0
    assert outputs["again"][0].num_cached_tokens == 20


def test_a_request_that_the_sampler_fails_ends_alone(monkeypatch):
    submit = PagedDevice.submit

    def failing(device, plan):
        pending = submit(device, plan)
        slots = [new.slot for new in plan.new if new.id == "bad"]
        pending.outcome.errors = dict.fromkeys(slots, ("the processor failed", "internal_error"))
        return pending

    monkeypatch.setattr(PagedDevice, "submit", failing)
    core = make_core(depth=2)
    core.add(request("bad", [1, 2], max_tokens=5))
    core.add(request("good", [1, 2, 3], max_tokens=5))
    outputs = drain(core)
    assert [(o.error, o.token_ids) for o in outputs["bad"]] == [("the processor failed", [])]
    assert tokens_of(outputs["good"]) == run_alone([1, 2, 3], 5, limit=64)
    assert_empty(core)


def test_free_slots_are_reported_to_the_runner_once_there_is_no_work():
    core = make_core()
    core.add(request("a", [1], max_tokens=3))
    core.add(request("b", [2], max_tokens=30))
    core.step()
    core.abort(["b"])
    drain(core)
    assert not core.runner.rows
    assert core.runner.steps[-1] == 0


def test_a_result_out_of_order_is_refused():
    core = make_core()
    core.add(request("a", [1], max_tokens=2))
    plan = core.scheduler.schedule()
    result = core.runner.submit(plan).result()
    result.step += 1
    with pytest.raises(RuntimeError, match="step 1 arrived, that of step 0"):
        core.scheduler.update(result)


def test_the_next_step_can_be_planned_before_the_result():
    core = make_core(depth=2)
    core.add(request("a", [1], max_tokens=3))
    assert core.step().outputs == []
    assert len(core.step().outputs) == 1
    assert core.scheduler._issued[0].plan.step == 1
    assert len(drain(core)["a"]) == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_an_interrupted_step_leaves_an_engine_that_works(depth):
    core = make_core(depth=depth)

    def interrupt(plan):
        raise KeyboardInterrupt

    core.add(request("a", [1], max_tokens=5))
    core.step()
    core.runner.before_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.runner.before_step = lambda plan: None
    drain(core)
    core.add(request("b", [1], max_tokens=5))
    assert tokens_of(drain(core)["b"]) == run_alone([1], 5, limit=64)
    assert_empty(core)


def test_sequences_that_decode_are_spread_over_the_steps_that_stages_compute_at_a_time() -> None:
    core = make_core(depth=3, stages=2)
    for number in range(5):
        core.add(request(str(number), [number], max_tokens=8, ignore_eos=True))
    steps: list[set[int]] = []
    submit = core._submit
    core._submit = lambda plan: steps.append({work.slot for work in plan.work}) or submit(plan)  # type: ignore[func-returns-value]
    found = drain(core)
    assert all(len(tokens_of(found[str(number)])) == 8 for number in range(5))
    first, *decoding = [step for step in steps if step]
    assert len(first) == 5
    for one, next_one, then in zip(decoding[:8:2], decoding[1:8:2], decoding[2:9:2], strict=True):
        assert not one & next_one
        assert len(one | next_one) == 5
        assert one == then
