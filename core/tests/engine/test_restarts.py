"""Sequences over engines that die in the midst of them: what comes out is what comes out of one that never dies."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import defaultdict

import psutil
import pytest
from fakes import build
from paged_device import run_alone

from llmk.api import EngineDead
from llmk.engine.processes import supervisor
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.processes.in_process_client import InProcessClient
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.wire.request import EngineRequest, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.0)


def request(id_: str, prompt: tuple[int, ...] = (1, 2, 3), **params) -> EngineRequest:
    return EngineRequest(id=id_, prompt_token_ids=list(prompt), params=SamplingParams(**params), seed=5)


async def generate(supervisor, requests, found, abort=()):
    """Puts everything that comes to each of ``requests`` in ``found``, by id."""
    left = {one.id for one in requests} - set(abort)
    await supervisor.add(requests)
    await supervisor.abort(abort)
    while left:
        for output in (await supervisor.outputs.next()).outputs:
            found[output.id].append(output)
            if output.finish_reason is not None:
                left.remove(output.id)


def check(request: EngineRequest, outputs: list[TokenOutput]) -> None:
    """They are those of an engine that never died."""
    params = request.params
    alone = run_alone(
        request.prompt_token_ids, params.max_tokens, limit=64, stops=params.stop_token_ids, seed=request.seed
    )
    assert [token for output in outputs for token in output.token_ids] == alone
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    logprobs = [entry.token_id for output in outputs for entry in output.logprobs]
    assert logprobs == (alone if params.logprobs is not None else [])
    scored = [[entry.token_id for entry in output.prompt_logprobs] for output in outputs]
    expected = request.prompt_token_ids[1:] if params.prompt_logprobs is not None else []
    assert scored == [expected] + [[]] * (len(outputs) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("number", range(6))
def test_any_load_comes_out_as_if_nothing_had_happened(number, depth):
    """Engines in threads, short of blocks, which die at random steps; one request kills each that starts it."""
    rng = random.Random(number)
    deaths = 0

    def make():
        nonlocal deaths
        core, info = build({"num_blocks": 20, "max_num_batched_tokens": 12, "max_num_seqs": 4, "depth": depth})
        end = rng.randrange(5, 60) if deaths < 2 else -1

        def before_step(plan):
            nonlocal deaths
            if any(new.id == "poison" for new in plan.new) or plan.step == end:
                deaths += 1
                raise EngineDead("a worker died")

        core.runner.before_step = before_step
        return core, info

    def some(id_):
        prompt = tuple(rng.randrange(50) for _ in range(rng.randrange(2, 14)))
        options = {"logprobs": rng.choice([None, 1]), "prompt_logprobs": rng.choice([None, None, 0])}
        stops = tuple(rng.sample(range(50), rng.choice([0, 0, 3])))
        made = request(id_, prompt, max_tokens=rng.randrange(1, 20), stop_token_ids=stops, **options)
        made.seed = rng.randrange(1 << 40)
        return made

    async def main():
        supervisor = await Supervisor.start(lambda: InProcessClient.start(make), restart_seconds=60)
        requests = [some(str(number)) for number in range(12)]
        requests.insert(rng.randrange(12), request("poison", max_tokens=3))
        await generate(supervisor, requests, found, abort=["7"])
        await supervisor.close()
        return requests

    found = defaultdict(list)
    requests = asyncio.run(main())
    for one in requests:
        if one.id == "poison":
            assert [(output.finish_reason, output.error_code) for output in found["poison"]] == [
                ("error", "internal_error")
            ]
        elif one.id != "7":
            check(one, found[one.id])
    assert deaths >= 3


def test_a_broken_thread_frees_its_engine_before_the_next_is_built():
    cores, found = [], defaultdict(list)

    def make():
        assert all(core() is None for core in cores)
        core, info = build({"trouble": "" if cores else "break"})
        cores.append(weakref.ref(core))
        return core, info

    async def main():
        supervisor = await Supervisor.start(lambda: InProcessClient.start(make), restart_seconds=60)
        one = request("a", max_tokens=6)
        await generate(supervisor, [one], found)
        check(one, found["a"])
        await supervisor.close()

    asyncio.run(main())
    assert len(cores) == 2


@pytest.mark.usefixtures("child_path")
def test_a_process_that_is_killed_over_and_over():
    """While it is busy, and while it starts again; the one that kills its engine fails alone."""

    async def main():
        started = 0

        async def start():
            nonlocal started
            started += 1
            return await ProcessClient.start({"trouble": "poison", "max_num_seqs": 3}, builder="fakes:build")

        supervisor = await Supervisor.start(start, restart_seconds=60)
        requests = [request(str(number), (number, 2), max_tokens=20) for number in range(6)]
        requests.insert(4, request("poison", max_tokens=5))
        answering = asyncio.create_task(generate(supervisor, requests, found))
        for attempt in range(1, 3):
            while not found or started < attempt:
                await asyncio.sleep(0)
            while not (engines := psutil.Process().children()):
                await asyncio.sleep(0)
            engines[0].kill()
            await asyncio.to_thread(engines[0].wait)
        await answering
        supervisor.check_health()
        await supervisor.close()
        assert supervisor.outage is None
        assert started >= 5
        return requests

    found = defaultdict(list)
    requests = asyncio.run(main())
    for one in requests:
        if one.id != "poison":
            check(one, found[one.id])
    assert [output.error_code for output in found["poison"]] == ["internal_error"]
    assert "ended with exit code 3" in found["poison"][0].error
