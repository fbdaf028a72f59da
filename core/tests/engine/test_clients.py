"""Both clients of an engine: in a thread, and in a process that may die, hang or fail to start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import fakes
import psutil
import pytest
from paged_device import run_alone

from llmk.api import EngineDead, LlmkError, NotEnoughMemory
from llmk.cli.main import main
from llmk.engine.processes import child_process as child
from llmk.engine.processes import loop_client
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.processes.in_process_client import InProcessClient
from llmk.engine.processes.loop_messages import Ping
from llmk.engine.processes.spawn import spawn
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("child_path", "own_temporary_folder")


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that what engines of other tests keep there is not taken for something left behind. Socket paths are short."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


async def start(kind: str, **options):
    if kind == "thread":
        return await InProcessClient.start(lambda: fakes.build(options))
    return await ProcessClient.start(options, builder="fakes:build")


def request(id_: str, max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(id=id_, prompt_token_ids=[1, 2, 3], params=SamplingParams(max_tokens=max_tokens, logprobs=1))


async def ended(client):
    """Takes what still comes."""
    while True:
        await client.outputs.next()


async def collect(client, until):
    outputs = []
    while not until(outputs):
        outputs += (await client.outputs.next()).outputs
    return outputs


def sockets() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("llmk-*")}


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children()]


async def watch_health(client) -> None:
    while True:
        client.check_health()
        await asyncio.sleep(0.02)


both = pytest.mark.parametrize("kind", ["thread", "process"])


@both
def test_sequences_run_and_nothing_stays(kind):
    before = sockets(), children()

    async def main():
        client = await start(kind)
        assert client.info.plan == {"model": "paged"}
        await client.add([request("a"), request("b")])
        outputs = await collect(client, lambda o: sum(x.finish_reason is not None for x in o) == 2)
        client.check_health()
        await client.close()
        await client.close()
        return outputs

    outputs = asyncio.run(main())
    tokens = [token for output in outputs if output.id == "a" for token in output.token_ids]
    assert tokens == run_alone([1, 2, 3], 5, limit=64)
    assert all(output.logprobs[0].token_id == output.token_ids[0] for output in outputs)
    assert (sockets(), children()) == before


@both
def test_an_abort_ends_output_and_frees_blocks(kind):
    async def main():
        client = await start(kind, trouble="slow")
        await client.add([request("a", 50)])
        await collect(client, lambda o: len(o) >= 2)
        await client.abort(["a", "unknown"])
        while (outputs := await client.outputs.next()).stats.used_blocks:
            pass
        assert outputs.stats.running == 0
        await client.close()

    asyncio.run(main())


@both
def test_a_failing_step_fails_its_sequences_only(kind):
    async def main():
        client = await start(kind, trouble="raise")
        await client.add([request("a")])
        (output,) = await collect(client, len)
        assert (output.finish_reason, output.error) == ("error", "ValueError: the step is broken")
        client.check_health()
        await client.close()

    asyncio.run(main())


@both
def test_errors_at_start_arrive_as_themselves(kind):
    before = sockets(), children()
    with pytest.raises(NotEnoughMemory, match="needs 2 GiB") as caught:
        asyncio.run(start(kind, trouble="memory"))
    assert caught.value.hint == "lower it"
    assert caught.value.exit_code == NotEnoughMemory.exit_code
    assert str(caught.value.reasons[0]) == "memory: wanted 2 GiB, found 1 GiB"
    assert "fakes.py" in caught.value.__notes__[0]
    with pytest.raises(LlmkError, match="ZeroDivisionError: at start"):
        asyncio.run(start(kind, trouble="bug"))
    assert (sockets(), children()) == before


@both
def test_an_engine_whose_step_takes_long_is_healthy(kind, monkeypatch):
    """Even where no request waits for the step any more: what was aborted may still be running."""
    monkeypatch.setattr(loop_client, "PING_SECONDS", 0.1)
    monkeypatch.setattr(loop_client, "IDLE_SECONDS", 0.3)

    async def main():
        client = await start(kind, trouble="hang")
        assert client.check_health() == 0
        await client.add([request("a")])
        while client.check_health() < 0.5:
            await asyncio.sleep(0.05)
        await client.abort(["a"])
        silence = client.check_health()
        while client.check_health() < silence + 0.5:
            await asyncio.sleep(0.05)
        if kind == "process":
            os.kill(client.pid, signal.SIGKILL)
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("ended", ["at its end", "by an abort"])
def test_an_engine_that_runs_nothing_and_does_not_answer_is_not_healthy(ended, monkeypatch):
    monkeypatch.setattr(loop_client, "PING_SECONDS", 0.1)
    monkeypatch.setattr(child, "stopped", lambda pid: False)

    async def main():
        client = await start("process", trouble="slow")
        await client.add([request("a", 5 if ended == "at its end" else 50)])
        await collect(client, lambda o: o and (ended == "by an abort" or o[-1].finish_reason))
        if ended == "by an abort":
            await client.abort(["a"])
        while client._at_work:
            await asyncio.sleep(0.05)
        os.kill(client.pid, signal.SIGSTOP)
        with pytest.raises(EngineDead, match=r"not answered for \d s, though it runs nothing"):
            await asyncio.wait_for(watch_health(client), 30)
        os.kill(client.pid, signal.SIGCONT)
        while client._silence:
            await asyncio.sleep(0.05)
        assert client.check_health() == 0
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("work", [False, True])
def test_a_stopped_process_is_not_healthy_at_once(work):
    async def main():
        client = await start("process", trouble="slow")
        if work:
            await client.add([request("a", 50)])
        os.kill(client.pid, signal.SIGSTOP)
        with pytest.raises(EngineDead, match=r"is stopped \(SIGSTOP\)"):
            await asyncio.wait_for(watch_health(client), 2)
        os.kill(client.pid, signal.SIGCONT)
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_a_process_that_is_killed_fails_everything_at_once(when):
    async def main():
        client = await start("process", trouble="hang")
        if when == "busy":
            await client.add([request("a")])
        waiting = asyncio.create_task(ended(client))
        await asyncio.sleep(0.1)
        killed = time.perf_counter()
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            await waiting
        assert time.perf_counter() - killed < 1
        for call in (client.add([request("b")]), client.outputs.next()):
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                await call
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            client.check_health()
        await client.close()

    asyncio.run(main())


def test_a_broken_loop_says_why():
    async def main():
        client = await start("process", trouble="break")
        await client.add([request("a")])
        with pytest.raises(EngineDead, match="KeyboardInterrupt"):
            await ended(client)
        await client.close()

    asyncio.run(main())


def test_the_process_leaves_group_signals_to_the_front_end():
    async def main():
        client = await start("process")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.pid, number)
        client.check_health()
        await client.close()

    asyncio.run(main())


def test_a_cancelled_start_leaves_nothing():
    before = sockets(), children()

    async def main():
        starting = asyncio.create_task(start("process"))
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(main())
    assert (sockets(), children()) == before


def test_the_process_ends_with_its_parent():
    script = """
        import asyncio, os, signal
        from llmk.engine.processes.engine_process import ProcessClient

        async def main():
            client = await ProcessClient.start({"trouble": "hang"}, builder="fakes:build")
            print(client.pid, client._folder.name, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    pid, folder = parent.stdout.readline().split()
    child = psutil.Process(int(pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=30)
    assert not Path(folder).exists()


def test_a_process_that_is_given_nothing_ends_without_a_word(capfd):
    process = spawn()
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert capfd.readouterr() == ("", "")


def test_a_process_starts_before_anything_else_is_imported():
    loaded = "import sys, llmk.cli.main, llmk.engine.processes.spawn"
    code = f"{loaded}; sys.exit(bool({{'llmk.api', 'asyncio'}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("argument", ["--help", "--nothing", "--port=x", "--config=nowhere.toml"])
def test_a_command_that_serves_nothing_leaves_no_process(argument, capfd):
    before = children()
    with contextlib.suppress(SystemExit):
        main(["serve", argument])
    assert children() == before
    printed = capfd.readouterr()
    assert bool(printed.out) is (argument == "--help")
    assert len(printed.err.splitlines()) <= 2


def test_a_device_is_set_up_while_the_engine_is_built(capfd):
    async def main():
        client = await ProcessClient.start({}, builder="fakes:build", early_setup="fakes:early_setup")
        while "early setup: 0" not in (printed := "".join(capfd.readouterr())):
            await asyncio.sleep(0.01)
        await client.close()
        return printed

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_failed_early_setup_is_ignored(capfd):
    async def main():
        client = await ProcessClient.start({}, builder="fakes:build", early_setup="fakes:nothing")
        client.check_health()
        await client.close()

    asyncio.run(main())
    assert capfd.readouterr() == ("", "")


def test_a_command_that_no_process_receives_does_not_block():
    """An engine that failed at its start has released its sockets before it receives Close."""

    async def main():
        client = ProcessClient(spawn())
        assert not client._sent(Ping(1))
        await client.close()

    asyncio.run(main())


def test_a_silent_process_is_killed():
    async def main():
        client = await ProcessClient.start({"trouble": "slow"}, builder="fakes:build", hang_seconds=1)
        await client.add([request("a", 50)])
        await collect(client, lambda o: o and o[-1].finish_reason)
        await asyncio.sleep(1.2)
        client.check_health()
        os.kill(client.pid, signal.SIGSTOP)
        started = time.perf_counter()
        with pytest.raises(EngineDead, match=r"did not answer for 1 s \(engine\.hang_seconds\) and was killed"):
            await ended(client)
        assert 0.7 < time.perf_counter() - started < 5
        await client.close()
        assert not psutil.pid_exists(client.pid)

    asyncio.run(main())


@pytest.mark.parametrize("work", [False, True])
def test_a_stopped_process_is_killed_long_before_a_silent_one(work, monkeypatch):
    monkeypatch.setattr(child, "STOPPED_SECONDS", 0.5)

    async def main():
        client = await ProcessClient.start({"trouble": "slow"}, builder="fakes:build", hang_seconds=300)
        if work:
            await client.add([request("a", 50)])
        os.kill(client.pid, signal.SIGSTOP)
        with pytest.raises(EngineDead, match=r"was stopped \(SIGSTOP\) for \d+ s, and was killed"):
            await asyncio.wait_for(ended(client), 30)
        assert client.culprit is None
        await client.close()

    asyncio.run(main())


def test_a_process_that_is_continued_soon_goes_on():
    async def main():
        client = await ProcessClient.start({"trouble": "slow"}, builder="fakes:build", hang_seconds=300)
        await client.add([request("a", 50)])
        os.kill(client.pid, signal.SIGSTOP)
        await asyncio.sleep(1.5)
        os.kill(client.pid, signal.SIGCONT)
        await collect(client, lambda o: o and o[-1].finish_reason)
        await client.close()

    asyncio.run(main())


def test_what_a_dead_engine_leaves_behind_is_killed():
    async def main():
        client = await start("process", trouble="worker")
        (worker,) = psutil.Process(client.pid).children()
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="SIGKILL"):
            await ended(client)
        assert worker.is_running()
        await client.close()
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE

    asyncio.run(main())


def test_a_close_that_is_cancelled_goes_on():
    async def main():
        client = await start("process", trouble="hang")
        await client.add([request("a")])
        pid = client.pid
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        os.kill(pid, signal.SIGKILL)
        await client.close()
        assert not psutil.pid_exists(pid)

    asyncio.run(main())
