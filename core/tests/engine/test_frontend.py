"""The asynchronous front end over the paged device: any mix of requests, ends, aborts and errors leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from contextlib import aclosing, asynccontextmanager

import fakes
import pytest
from msgspec.structs import replace
from paged_device import VOCAB, run_alone

from llmk.api import (
    ContextLengthExceeded,
    EngineDead,
    LlmkError,
    Overloaded,
    QueueTimeout,
    RequestError,
    RequestTimeout,
)
from llmk.engine.async_llm import AsyncLLM
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.processes.in_process_client import InProcessClient
from llmk.engine.text.input_processor import derived_seed
from llmk.engine.text.output_processor import SequenceTimes
from llmk.engine.text.tokenizer import Tokenizer
from llmk.engine.wire.request import RequestContext
from llmk.engine.wire.sampling_params import SamplingParams

PROMPT = [11, 12, 13]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fakes.write_checkpoint(
        tmp_path_factory.mktemp("checkpoint"),
        generation_config={"temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": 999, "max_length": 20},
        tokenizer_config={},
    )


@asynccontextmanager
async def engine(folder, *, process=False, scheduler=None, cache=None, server=None, **options):
    boot = fakes.boot(folder, cache=cache, server=server, **(scheduler or {}))
    client = (
        await ProcessClient.start(options, builder="fakes:build")
        if process
        else await InProcessClient.start(lambda: fakes.build(options))
    )
    llm = AsyncLLM(boot, client, Tokenizer.load(boot.checkpoint))
    try:
        yield llm
    finally:
        await llm.close()
        assert not llm._router._requests
        assert not llm._router._streams


async def collect(llm, prompt=PROMPT, id_="a", tenant="", **params):
    """Deltas by choice."""
    choices: dict[int, list] = {}
    async with aclosing(llm.generate(prompt, SamplingParams(**params), RequestContext(id_, tenant=tenant))) as deltas:
        async for delta in deltas:
            choices.setdefault(delta.index, []).append(delta)
    return choices


async def idle(llm):
    """Waits until the engine holds nothing, and says so."""
    while llm.stats.used_blocks or llm.stats.running or llm.stats.waiting:
        await asyncio.sleep(0.005)


def tokens(deltas):
    return [token for delta in deltas for token in delta.token_ids]


def run(main):
    """Runs ``main`` and sees to it that no task outlives it."""

    async def checked():
        await main
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(checked())


@pytest.mark.parametrize("process", [False, True])
def test_an_answer(folder, child_path, process):
    async def main():
        async with engine(folder, process=process) as llm:
            choices = await collect(llm, max_tokens=6, seed=0, logprobs=2)
            (deltas,) = choices.values()
            assert tokens(deltas) == run_alone(PROMPT, 6, limit=64)
            assert "".join(d.text for d in deltas) == llm.tokenizer.decode(tokens(deltas))
            assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["length"]
            assert all(len(d.logprobs) == len(d.token_ids) for d in deltas)
            assert {d.num_prompt_tokens for d in deltas} == {3}
            assert llm.model_name == folder.name
            llm.check_health()
            await idle(llm)

    run(main())


@pytest.mark.parametrize("process", [False, True])
def test_times_are_the_engines_own(folder, child_path, process):
    """Its seconds are its steps here. A prompt of 40 tokens takes three of them, and a stop string ends at the third
    token however late the engine learns of it."""

    async def main():
        async with engine(folder, process=process) as llm:
            seen = []
            llm.step_listeners.append(seen.append)
            (deltas,) = (await collect(llm, list(range(40)), max_tokens=9, seed=0, ignore_eos=True)).values()
            assert deltas[-1].times == SequenceTimes(queue=0, prefill=3, decode=8)
            assert all(delta.times is None for delta in deltas[:-1])
            assert [step.num_tokens for step in seen] == [16, 16, 8] + [1] * 8
            text = "".join(delta.text for delta in deltas[:3])
            (deltas,) = (await collect(llm, list(range(40)), max_tokens=9, seed=0, stop=(text[-3:],))).values()
            assert deltas[-1].finish_reason == "stop"
            assert deltas[-1].times.decode == len(tokens(deltas)) - 1

    run(main())


def test_who_waits_for_a_place_is_in_the_queue(folder):
    async def main():
        async with engine(folder, max_num_seqs=1) as llm:
            answers = asyncio.gather(*(collect(llm, id_=id, max_tokens=5, ignore_eos=True) for id in "abc"))
            queued = [deltas[-1].times.queue for choices in await answers for deltas in choices.values()]
            assert queued[0] == 0 < queued[1] <= 5 < queued[2] <= 10

    run(main())


def test_who_is_aborted_has_no_times(folder):
    async def main():
        async with engine(folder, trouble="slow") as llm:
            stream = llm.generate(PROMPT, SamplingParams(max_tokens=60, ignore_eos=True), RequestContext("a"))
            await anext(stream)
            await llm.abort("a")
            assert [delta.times async for delta in stream][-1] is None

    run(main())


def test_choices_have_seeds_of_their_own(folder):
    async def main():
        async with engine(folder) as llm:
            choices = await collect(llm, n=3, max_tokens=8, seed=4)
            assert {index: tokens(deltas) for index, deltas in choices.items()} == {
                index: run_alone(PROMPT, 8, limit=64, seed=derived_seed(4, index)) for index in range(3)
            }
            again = await collect(llm, n=3, max_tokens=8)
            assert len({tuple(tokens(deltas)) for deltas in again.values()}) == 3

    run(main())


def test_seeds_fit_the_device():
    assert derived_seed(5, 0) == 5
    assert all(0 <= derived_seed(seed, index) < 2**63 for seed in (-1, 0, 2**70) for index in range(3))


def test_a_stop_string_ends_the_answer_in_the_engine_too(folder):
    async def main():
        async with engine(folder, trouble="slow") as llm:
            whole = "".join(d.text for d in (await collect(llm, max_tokens=40, seed=0))[0])
            stop = whole[10:13]
            deltas = (await collect(llm, max_tokens=40, seed=0, stop=(stop,)))[0]
            assert "".join(d.text for d in deltas) == whole[: whole.index(stop)]
            assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
            await idle(llm)

    run(main())


def test_stop_tokens_and_eos(folder):
    async def main():
        async with engine(folder) as llm:
            second = run_alone(PROMPT, 2, limit=64)[1]
            deltas = (await collect(llm, seed=0, stop_token_ids=(second,)))[0]
            assert (len(tokens(deltas)), deltas[-1].stop_reason) == (2, second)
            llm.tokenizer.eos_token_ids = (second,)
            deltas = (await collect(llm, seed=0))[0]
            assert (len(tokens(deltas)), deltas[-1].finish_reason, deltas[-1].stop_reason) == (2, "stop", None)

    run(main())


def test_max_tokens_end_at_the_context(folder):
    async def main():
        async with engine(folder, max_model_len=10) as llm:
            for params in ({"max_tokens": 100}, {}):
                deltas = (await collect(llm, **params))[0]
                assert len(tokens(deltas)) == 7
                assert deltas[-1].finish_reason == "length"

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        (
            list(range(64)),
            {},
            ContextLengthExceeded,
            "context length is 64 tokens.* but the prompt has 64",
        ),
        ([], {}, RequestError, "no tokens"),
        ([1000], {}, RequestError, "prompt names token 1000; the model's tokens are 0 to 999"),
        ([1, -1], {}, RequestError, "token -1"),
        (PROMPT, {"logit_bias": {1000: 1.0}}, RequestError, "logit_bias names token 1000"),
        (PROMPT, {"stop_token_ids": (5000,)}, RequestError, "stop_token_ids names token 5000"),
    ],
)
def test_what_can_not_be_served_is_refused(folder, prompt, params, error, message):
    async def main():
        async with engine(folder) as llm:
            with pytest.raises(error, match=message) as caught:
                await collect(llm, prompt, **params)
            assert caught.value.http_status == 400

    run(main())


def test_a_prompt_that_fills_more_than_the_cache_is_a_bad_request(folder):
    async def main():
        async with engine(folder, num_blocks=4, max_model_len=64) as llm:
            with pytest.raises(RequestError, match="need 5 blocks, the cache has 4"):
                await collect(llm, [1] * 20, n=2)

    run(main())


def test_too_many_sequences_are_refused(folder):
    async def main():
        async with engine(folder, scheduler={"max_num_seqs": 1, "max_waiting": 2}, trouble="slow") as llm:
            first = asyncio.create_task(collect(llm, id_="a", n=2, max_tokens=20))
            await asyncio.sleep(0.02)
            with pytest.raises(Overloaded, match="2 sequences run and wait; no more than 3"):
                await collect(llm, id_="b", n=2)
            with pytest.raises(RequestError, match="'a' is being answered"):
                await collect(llm, id_="a")
            await first
            await collect(llm, id_="a", n=3, max_tokens=1)

    run(main())


def test_a_tenant_may_have_so_many_sequences(folder):
    async def main():
        async with engine(folder, scheduler={"max_per_tenant": 2}, trouble="slow") as llm:
            first = asyncio.create_task(collect(llm, id_="a", n=2, max_tokens=20, tenant="x"))
            await asyncio.sleep(0.02)
            with pytest.raises(Overloaded, match=r"2 sequences of this client .* no more than 2 \(scheduler\."):
                await collect(llm, id_="b", tenant="x", max_tokens=1)
            await collect(llm, id_="c", tenant="y", max_tokens=1)
            await first
            await collect(llm, id_="b", tenant="x", max_tokens=1)

    run(main())


def test_time_outs_arrive_as_what_they_are(folder):
    async def main():
        async with engine(folder, max_num_seqs=1, request_timeout=12, queue_timeout=6) as llm:
            slow = asyncio.create_task(collect(llm, id_="slow", max_tokens=60))
            await asyncio.sleep(0)
            with pytest.raises(QueueTimeout, match="was not started in time: it waited") as caught:
                await collect(llm, id_="late", max_tokens=1)
            assert caught.value.http_status == 504
            with pytest.raises(RequestTimeout, match=r"not done in time: after 12\.0 s it had"):
                await slow
            await collect(llm, id_="next", max_tokens=1)
            await idle(llm)

    run(main())


@pytest.mark.parametrize("how", ["close", "cancel", "abort"])
def test_who_leaves_frees_everything(folder, how):
    async def main():
        async with engine(folder, trouble="slow") as llm:
            stream = llm.generate(PROMPT, SamplingParams(n=2, max_tokens=60), RequestContext("a"))
            await anext(stream)
            if how == "close":
                await stream.aclose()
            elif how == "cancel":
                task = asyncio.create_task(_exhaust(stream))
                await asyncio.sleep(0.02)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await stream.aclose()
            else:
                await llm.abort("a")
                await llm.abort("unknown")
                ends = [d.finish_reason async for d in stream if d.finish_reason]
                assert ends == ["abort", "abort"]
            assert not llm._router._requests
            await asyncio.sleep(0.05)
            await idle(llm)

    run(main())


async def _exhaust(stream):
    async for _ in stream:
        pass


def test_a_failing_step_raises_its_cause(folder):
    async def main():
        async with engine(folder, trouble="raise") as llm:
            with pytest.raises(LlmkError, match="ValueError: the step is broken") as caught:
                await collect(llm, n=2)
            assert caught.value.http_status == 500
            llm.check_health()

    run(main())


def test_a_dead_engine_fails_running_and_later_requests(folder, child_path):
    async def main():
        async with engine(folder, process=True, trouble="hang") as llm:
            running = asyncio.create_task(collect(llm))
            await asyncio.sleep(0.1)
            llm._client._process.kill()
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                await running
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                await collect(llm)
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                llm.check_health()

    run(main())


def test_a_front_end_that_breaks_leaves_no_request_waiting(folder, monkeypatch):
    async def main():
        async with engine(folder, trouble="slow") as llm:
            running = asyncio.create_task(collect(llm, max_tokens=60))
            await asyncio.sleep(0.02)
            monkeypatch.setattr(llm._router, "_take", lambda *args: 1 // 0)
            with pytest.raises(EngineDead, match="the front end failed: ZeroDivisionError"):
                await running
            with pytest.raises(EngineDead, match="the front end failed: ZeroDivisionError"):
                await collect(llm, id_="b")

    run(main())


def test_an_engine_that_was_started_again_may_report_other_limits(folder):
    async def main():
        async with engine(folder) as llm:
            llm._client.info = replace(llm.info, max_model_len=8, vocab_size=12, logits_processors=("new",))
            assert llm.info.max_model_len == 8
            with pytest.raises(ContextLengthExceeded, match="maximum context length is 8"):
                await collect(llm, [1] * 8)
            with pytest.raises(RequestError, match="tokens are 0 to 11"):
                await collect(llm, [12])
            with pytest.raises(RequestError, match=r"installed: new"):
                await collect(llm, [1], logits_processors={"old": {}})

    run(main())


def test_closing_fails_what_is_running(folder):
    async def main():
        async with engine(folder, trouble="slow") as llm:
            running = asyncio.create_task(collect(llm, max_tokens=60))
            await asyncio.sleep(0.02)
            await llm.close()
            with pytest.raises(EngineDead, match="was closed"):
                await running

    run(main())


def test_a_salt_keeps_prefixes_apart_and_hits_are_reported(folder):
    async def main():
        async with engine(folder) as llm:
            prompt = list(range(12))
            for id_, salt, hits in (("a", "", 0), ("b", "", 8), ("c", "x", 0)):
                stream = llm.generate(prompt, SamplingParams(max_tokens=1), RequestContext(id_, cache_salt=salt))
                assert [d.num_cached_tokens async for d in stream] == [hits]

    run(main())


@pytest.mark.parametrize("isolated", [False, True])
def test_tenants_share_prefixes_unless_they_are_isolated(folder, isolated):
    async def main():
        async with engine(folder, cache={"isolate_tenants": isolated}) as llm:
            hits = []
            for number, tenant in enumerate(("one", "two", "one")):
                choices = await collect(llm, list(range(12)), str(number), tenant, max_tokens=1)
                hits.append(choices[0][0].num_cached_tokens)
            assert hits == [0, 0 if isolated else 8, 8]

    run(main())


def test_defaults_are_the_checkpoints(folder):
    async def main():
        async with engine(folder) as llm:
            p = llm.default_params
            assert (p.temperature, p.top_p, p.top_k, p.max_tokens) == (0.6, 0.9, 20, None)
            assert llm.tokenizer.eos_token_ids == (999,)

    run(main())


def test_a_text_is_tokenized(folder):
    async def main():
        async with engine(folder, vocab_size=1000) as llm:
            deltas = (await collect(llm, "The lazy dog", max_tokens=1))[0]
            assert deltas[0].num_prompt_tokens == len(llm.tokenizer.encode("The lazy dog"))

    run(main())


@pytest.mark.parametrize("process", [False, True])
def test_64_streams_with_random_aborts_leave_nothing(folder, child_path, process):
    rng = random.Random(0)

    async def one(llm, number):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]
        if number % 2:
            prompt = [1] * 16 + prompt
        count, leave = rng.randrange(1, 20), rng.random() < 0.4
        stream = llm.generate(prompt, SamplingParams(max_tokens=count, seed=number), RequestContext(str(number)))
        got = []
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                got += delta.token_ids
                if leave and rng.random() < 0.3:
                    return
        assert got == run_alone(prompt, count, limit=64, seed=number)

    async def main():
        options = {"num_blocks": 40, "max_num_batched_tokens": 32, "trouble": "slow"}
        async with engine(folder, process=process, **options) as llm:
            await asyncio.gather(*(one(llm, number) for number in range(64)))
            assert not llm._router._requests
            assert not llm._router._streams
            llm.check_health()
            await idle(llm)

    run(main())


def test_requests_are_freed_without_the_garbage_collector(folder):
    async def main():
        async with engine(folder) as llm:
            gc.disable()
            try:
                stream = llm.generate(PROMPT, SamplingParams(max_tokens=3), RequestContext("a"))
                await anext(stream)
                held = weakref.ref(llm._router._requests["a"])
                async for _ in stream:
                    pass
                del stream
                assert held() is None
            finally:
                gc.enable()

    run(main())


@pytest.mark.parametrize("bound", [{"max_unread": 300}, {"max_unread_per_client": 300}])
def test_an_answer_that_no_client_reads_ends_and_holds_little(folder, bound):
    """The engine does not wait for who reads, and what an answer holds is bounded by nothing else."""

    async def main():
        async with engine(folder, server=bound, num_blocks=200) as llm:
            params = SamplingParams(n=8, logprobs=10, max_tokens=40, ignore_eos=True)
            unread, awake = llm.generate(PROMPT, params, RequestContext("unread", tenant="sleeper")), asyncio.Event()

            async def sleep():
                async for _ in unread:
                    await awake.wait()

            sleeping = asyncio.create_task(sleep())
            await asyncio.sleep(0)
            choices = await collect(llm, id_="read", tenant="reader", max_tokens=40, ignore_eos=True)
            assert len(tokens(choices[0])) == 40
            await idle(llm)
            assert not llm._router._unread.tenants
            awake.set()
            with pytest.raises(LlmkError, match=r"log-probabilities of the answer wait to be read") as caught:
                await sleeping
            assert (caught.value.code, next(iter(bound)) in str(caught.value)) == ("answer_not_read", True)
            await unread.aclose()

    run(main())


def test_one_delta_may_wait_however_large_it_is(folder):
    async def main():
        async with engine(folder, server={"max_unread_per_client": 10}) as llm:
            choices = await collect(llm, [5] * 20, tenant="a", max_tokens=1, prompt_logprobs=5)
            assert len(choices[0][0].prompt_logprobs) == 20

    run(main())
