"""Worker processes: a crash or hang of one affects no other request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pooled
import psutil
import pytest
from scripted import ScriptedEngine

from llmk.api import LlmkError, Overloaded, ParserContext, TextDelta
from llmk.engine.text.io_processors import ProcessLost
from llmk.engine.wire.request import RequestContext
from llmk.serve.generation import reading
from llmk.serve.generation.reading import ParsedPiece
from llmk.serve.http.errors import ParserFailed
from llmk.serve.workers import io_pool, parser_worker, prepare_worker, served_model
from llmk.serve.workers.forkserver import Setup
from llmk.serve.workers.frames import encode, framed
from llmk.serve.workers.parser_pool import WorkerReaders
from llmk.serve.workers.prepare_lane import SMALL, Bounds, PrepareLane, TooSlow, WorkerFailed
from llmk.serve.workers.prepared_request import Generation, Refused, Rendered, Work
from llmk.serve.workers.worker_process import TooMuchMemory, WorkerProcesses

HERE = str(Path(__file__).parent)
SETUP = reading.encode_setup(reading.ReaderSetup(ParserContext()))


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)


@asynccontextmanager
async def forks(dialect: str = "wicked") -> AsyncIterator[WorkerProcesses]:
    made = WorkerProcesses("pooled:make", dialect.encode)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def lane(
    made: WorkerProcesses, count: int = 1, *, ahead: bool = True, **bounds: Any
) -> AsyncIterator[PrepareLane]:
    limits = Bounds(**{"requests": 8, "num_bytes": 1 << 20, "seconds": 30.0, "memory": 1 << 30, **bounds})
    opened = PrepareLane("test", lambda: made.fork(prepare_worker.ENTRY), count, limits, ahead=ahead)
    try:
        yield opened
    finally:
        await opened.close()


def work(kind: str, text: str, tenant: str = "") -> tuple[Work, bytes]:
    body = msgspec.json.encode({"prompt": text, "max_tokens": 1})
    if kind == "tokenize":
        body = msgspec.json.encode({"prompt": text})
    return Work(kind, RequestContext("id", tenant=tenant), ScriptedEngine().info), body


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def children(made: WorkerProcesses) -> list[psutil.Process]:
    return psutil.Process(made.pid).children()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_a_request_is_prepared_elsewhere() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made) as small:
            prepared = await small.prepare(*work("tokenize", "ab"))
            assert isinstance(prepared, Rendered)
            assert msgspec.json.decode(prepared.body)["tokens"] == [1, 97, 98]
            prepared = await small.prepare(*work("text", "ab"))
            assert isinstance(prepared, Generation)
            assert list(prepared.job().prompts) == [[1, 97, 98]]
            prepared = await small.prepare(*work("text", ""))
            assert isinstance(prepared, Refused)
            assert (prepared.status, prepared.body["error"]["param"]) == (400, "prompt")

    run(scenario)


def test_a_worker_that_is_not_forked_ahead_is_forked_for_the_first_request_and_stays() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made, ahead=False) as large:
            async with lane(made):
                await until(lambda: len(children(made)) == 1)
            await until(lambda: not children(made))
            for _ in range(2):
                assert isinstance(await large.prepare(*work("tokenize", "ab")), Rendered)
                assert len(children(made)) == 1

    run(scenario)


def test_what_cannot_be_served_says_why() -> None:
    async def scenario() -> None:
        with pytest.raises(LlmkError, match="it can't be made"):
            async with forks("broken"):
                pass

    run(scenario)


def test_one_that_takes_too_long_is_ended_and_the_next_is_prepared() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made, seconds=1.0) as small:
            with pytest.raises(TooSlow, match=r"server\.prepare_seconds"):
                await small.prepare(*work("tokenize", "{sleep}"))
            assert isinstance(await small.prepare(*work("tokenize", "ab")), Rendered)
            await until(lambda: len(children(made)) == 1)

    run(scenario)


def test_one_that_takes_too_much_memory_is_ended_and_the_next_is_prepared() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made, memory=256 << 20) as small:
            await small.prepare(*work("tokenize", "ab"))
            with pytest.raises(TooMuchMemory, match=r"server\.worker_memory") as raised:
                await small.prepare(*work("tokenize", "{hoard}"))
            assert raised.value.http_status == 413
            assert isinstance(await small.prepare(*work("tokenize", "ab")), Rendered)
            await until(lambda: len(children(made)) == 1)

    run(scenario)


def test_one_that_ends_its_worker_fails_alone() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made) as small:
            bad = asyncio.create_task(small.prepare(*work("tokenize", "{end}", "bad")))
            good = [asyncio.create_task(small.prepare(*work("tokenize", "ab", "good"))) for _ in range(3)]
            with pytest.raises(WorkerFailed, match="exit code 7"):
                await bad
            assert all(isinstance(one, Rendered) for one in await asyncio.gather(*good))

    run(scenario)


@pytest.mark.parametrize(
    ("text", "error", "bounds"),
    [
        ("{end}", WorkerFailed, {}),
        ("{sleep}", TooSlow, {"seconds": 1.0}),
        ("{hoard}", TooMuchMemory, {"memory": 256 << 20}),
    ],
)
def test_one_that_fails_costs_no_other_that_its_worker_got_with_it(
    text: str, error: type[LlmkError], bounds: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made, **bounds) as small:
            texts = ["a", text, "ab", text, "abc"]
            asked = [asyncio.create_task(small.prepare(*work("tokenize", one))) for one in texts]
            done = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(one) for one in done] == [Rendered, error, Rendered, error, Rendered]

    run(scenario)


def test_a_worker_that_was_killed_idle_costs_no_request() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made) as small:
            await small.prepare(*work("tokenize", "ab"))
            children(made)[0].kill()
            assert isinstance(await small.prepare(*work("tokenize", "ab")), Rendered)

    run(scenario)


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made) as small:
            await small.prepare(*work("tokenize", "ab"))
            first, orphans = made.pid, children(made)
            os.kill(first, signal.SIGKILL)
            await until(lambda: not any(orphan.is_running() for orphan in orphans))
            assert isinstance(await small.prepare(*work("tokenize", "ab")), Rendered)
            assert made.pid != first

    run(scenario)


def test_memory_is_given_back() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made) as small:
            await small.prepare(*work("tokenize", "ab"))
            pids = {child.pid for child in children(made)}
            assert isinstance(await small.prepare(*work("tokenize", "{bloat}")), Rendered)
            assert isinstance(await small.prepare(*work("tokenize", "ab")), Rendered)
            await until(lambda: not pids & {child.pid for child in children(made)})

    run(scenario)


def test_clients_take_turns_and_one_may_only_wait_so_long_a_queue() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made, requests=4) as small:
            await small.prepare(*work("tokenize", "ab"))
            done: list[str] = []

            async def ask(tenant: str) -> None:
                await small.prepare(*work("tokenize", "a" * (SMALL // 3), tenant))  # at most two of them at once
                done.append(tenant)

            many = [asyncio.create_task(ask("greedy")) for _ in range(8)]
            await asyncio.sleep(0)
            await ask("quiet")
            refused = [one for one in await asyncio.gather(*many, return_exceptions=True) if one is not None]
            assert len(refused) == 4
            assert all(isinstance(one, Overloaded) and "server.prepare_waiting" in str(one) for one in refused)
            assert done.index("quiet") <= 2

    run(scenario)


def test_who_leaves_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with forks() as made, lane(made, requests=2) as small:
            await small.prepare(*work("tokenize", "ab"))
            for _ in range(10):
                waiting = [asyncio.create_task(small.prepare(*work("tokenize", "ab", "t"))) for _ in range(2)]
                await asyncio.sleep(0)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(await small.prepare(*work("tokenize", "ab", "t")), Rendered)

    run(scenario)


async def text_of(readers: WorkerReaders, pieces: list[str]) -> str:
    """What one choice comes to, piece by piece."""
    reader = readers.open(SETUP)
    found: list[Any] = []
    try:
        for at, text in enumerate(pieces):
            piece = reader.read(text, [(len(text), 1)], ended=at == len(pieces) - 1)
            found += (await piece).events
    finally:
        reader.close()
    return "".join(event.text for event in found if isinstance(event, TextDelta))


@asynccontextmanager
async def readers(made: WorkerProcesses, seconds: float = 2.0) -> AsyncIterator[WorkerReaders]:
    opened = WorkerReaders(lambda: made.fork(parser_worker.ENTRY), seconds)
    try:
        yield opened
    finally:
        await opened.close()


def test_text_is_read_elsewhere() -> None:
    async def scenario() -> None:
        async with forks("angle") as made, readers(made) as pool:
            reader = pool.open(SETUP)
            first, second = reader.read("(a", [(2, 1)], ended=False), reader.read(")b", [(2, 1)], ended=True)
            thought, said = await first, await second
            assert isinstance(thought, ParsedPiece)
            assert ([type(event).__name__ for event in thought.events], thought.num_thoughts) == (["ReasoningDelta"], 1)
            assert list(said.events) == [TextDelta("b")]
            reader.close()

    run(scenario)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("{loop}", "did not return within 2 s"),
        ("{sleep}", "did not return within 2 s"),
        ("{regex}", "did not return within 2 s"),
        ("{exit}", "SystemExit: 3"),
        ("{interrupt}", "KeyboardInterrupt"),
        ("{end}", "exit code 7"),
        ("{kill}", "SIGSEGV"),
        ("{odd}", "returned invalid events"),
        ("{surrogate}", "returned invalid events"),
    ],
)
def test_a_parser_that_misbehaves_fails_its_request_alone_and_is_named(what: str, message: str) -> None:
    async def scenario() -> None:
        async with forks() as made, readers(made) as pool:
            assert await text_of(pool, ["a", "b"]) == "ab."
            before = pool.open(SETUP)
            assert list((await before.read("started ", [(8, 1)], ended=False)).events) == [TextDelta("started ")]
            bad = asyncio.create_task(text_of(pool, ["x", what, "y"]))
            good = [asyncio.create_task(text_of(pool, ["one ", *"two three"])) for _ in range(5)]
            started = time.monotonic()
            assert await asyncio.gather(*good) == ["one two three."] * 5
            took = time.monotonic() - started
            assert list((await before.read("and done", [(8, 1)], ended=True)).events) == [
                TextDelta("and done"),
                TextDelta("."),
            ]
            if "did not return" in message:
                assert not bad.done(), f"others waited for {took:.1f} s until it was ended"
            with pytest.raises(ParserFailed, match=r"test\.wicked") as failed:
                await bad
            assert message in failed.value.message
            before.close()
            assert await text_of(pool, ["a", "b"]) == "ab."

    run(scenario)


def test_a_parser_that_is_slow_is_left_alone_and_comes_back() -> None:
    async def scenario() -> None:
        async with forks() as made, readers(made, seconds=20.0) as pool:
            slow = asyncio.create_task(text_of(pool, ["x", "{slow}", "y", "z"]))
            await asyncio.sleep(0.05)
            assert await text_of(pool, ["a", "b"]) == "ab."
            assert await slow == "x{slow}yz."
            await until(lambda: len(children(made)) == 1)

    run(scenario)


@pytest.mark.slow
def test_more_loops_than_there_are_processes_for() -> None:
    async def scenario() -> None:
        async with forks() as made, readers(made, seconds=4.0) as pool:
            bad = [asyncio.create_task(text_of(pool, ["x", "{sleep}"])) for _ in range(9)]
            good = asyncio.create_task(text_of(pool, list("abc")))
            assert await good == "abc."
            outcomes = await asyncio.gather(*bad, return_exceptions=True)
            assert all(isinstance(outcome, ParserFailed) for outcome in outcomes)
            assert await text_of(pool, ["a", "b"]) == "ab."

    run(scenario)


PARENT = """
import asyncio, sys
from llmk.serve.workers.worker_process import WorkerProcesses
from llmk.serve.generation import reading
from llmk.serve.workers.forkserver import Setup
from llmk.serve.workers.frames import encode, framed

async def main():
    made = WorkerProcesses("pooled:make", lambda: b"wicked")
    await made.start()
    workers = [await made.fork("pooled_loop:run") for _ in range(2)]
    print(made.pid, *(worker.pid for worker in workers), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["parent", "fork server"])
def test_nothing_outlives_the_server(victim: str, tmp_path: Path) -> None:
    """Workers that loop, so that they notice nothing."""
    (tmp_path / "pooled_loop.py").write_text("def run(served, connection, mark):\n    while True: pass\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((HERE, str(tmp_path)))}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    try:
        assert len(pids) == 3
        os.kill(parent.pid if victim == "parent" else pids[0], signal.SIGKILL)
        end = time.monotonic() + 30
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            assert time.monotonic() < end, "a process outlives what it is for"
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


SHARED = """
import asyncio, os, signal, socket, sys, threading
import psutil
import pooled
from llmk.serve.workers import prepare_worker
from llmk.serve.workers.worker_process import WorkerProcesses

if {threads}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
port = socket.create_server(("127.0.0.1", 0))
ours, theirs = socket.socketpair()
made = WorkerProcesses("pooled:make", lambda: b"wicked")
made.share(pooled.make(b"wicked"))

async def main():
    await made.start()
    first = made.pid
    command = psutil.Process(first).cmdline()
    shares = command == psutil.Process().cmdline()
    assert shares or command[-2] == "llmk.serve.workers.forkserver", command
    theirs.close()
    assert ours.recv(1) == b"", "the other end was inherited"
    assert not psutil.Process(first).net_connections("inet"), "the port would outlive the server"
    worker = await made.fork("pooled:answer_io")
    assert psutil.Process(worker.pid).ppid() == first
    os.kill(first, signal.SIGKILL)
    await worker.ending()
    await made.fork("pooled:answer_io")
    assert made.pid != first and psutil.Process(made.pid).cmdline() != psutil.Process().cmdline()
    await made.close()
    assert not psutil.Process().children()
    print("shares" if shares else "loads")

asyncio.run(main())
"""


@pytest.mark.parametrize(("threads", "how"), [(0, "shares"), (1, "loads")])
def test_the_first_fork_server_shares_what_its_parent_holds_and_others_load_it(threads: int, how: str) -> None:
    """Only where no thread might hold a lock at the time of the fork. It keeps none of its parent's files open."""
    environment = {**os.environ, "PYTHONPATH": HERE}
    command = [sys.executable, "-c", SHARED.format(threads=threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{how}\n"), done.stderr


def test_what_no_fork_server_was_started_for_is_closed() -> None:
    program = """
import asyncio, psutil
from llmk.serve.workers.worker_process import WorkerProcesses
made = WorkerProcesses("pooled:make", lambda: b"wicked")
made.share(None)
assert len(psutil.Process().children()) == 1
asyncio.run(made.close())
assert not psutil.Process().children()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_worker_that_ends_after_the_fork_server_wakes_no_process() -> None:
    """Else the signal would be written to a descriptor that is closed, and the error be printed."""
    program = """
import signal, socket
from llmk.serve.workers.forkserver import ForkServer
ours, theirs = socket.socketpair()
ours.close()
ForkServer(theirs).run()
assert signal.set_wakeup_fd(-1) == -1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("set_up", [False, True])
def test_a_fork_server_whose_parent_goes_removes_its_marks_and_nothing_else(tmp_path: Path, set_up: bool) -> None:
    """Before and after its setup, which has the folder."""
    here, folder = tmp_path / "here", tmp_path / "folder"
    for place in (here, folder):
        (place / "kept").mkdir(parents=True)
        (place / "kept" / "file").write_text("of somebody else")
        (place / "0").write_text("of somebody else, by a mark's name" if place == here else "a mark")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", "-m", "llmk.serve.workers.forkserver", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=here, pass_fds=(theirs.fileno(),))
        if set_up:
            ours.sendall(framed(encode(Setup("pooled:make", b"wicked", str(folder)))))
            assert ours.recv(1)
    assert process.wait(60) == 0
    assert (here / "0").is_file()
    assert all((place / "kept" / "file").is_file() for place in (here, folder))
    assert (folder / "0").exists() != set_up


def test_the_worker_of_an_io_processor_ends_when_nothing_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_pool, "IDLE_SECONDS", 0.5)

    async def scenario() -> None:
        async with forks() as made:
            host = io_pool.WorkerIO(lambda: made.fork("pooled:answer_io"), 5.0, 1 << 30)
            pids = set()
            for _ in range(2):
                run = await host.open("test", "the test", b"{}", ScriptedEngine().info, RequestContext())
                await asyncio.sleep(1.5)  # it is not idle while a request is running
                pids.add(int(await run.answer()))
                assert len(children(made)) == 1
                run.close()
                await until(lambda: not children(made))
            assert len(pids) == 2
            await host.close()

    run(scenario)


def test_an_io_processor_that_takes_too_much_memory_fails_that_request_alone() -> None:
    async def scenario() -> None:
        async with forks() as made:
            host = io_pool.WorkerIO(lambda: made.fork("pooled:answer_io"), 60.0, 256 << 20)
            info = ScriptedEngine().info
            await host.open("test", "the test", b"{}", info, RequestContext())
            bad = asyncio.create_task(host.open("test", "the test", b"{hoard}", info, RequestContext()))
            await asyncio.sleep(0)
            good = asyncio.create_task(host.open("test", "the test", b"{}", info, RequestContext()))
            with pytest.raises(TooMuchMemory, match=r"server\.worker_memory"):
                await bad
            with pytest.raises(ProcessLost):  # and is run again
                await good
            await host.open("test", "the test", b"{}", info, RequestContext())
            await host.close()

    run(scenario)


def test_workers_are_forked_of_a_process_that_has_prepared_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    boot: Any = SimpleNamespace(facts=SimpleNamespace(max_model_len=512, vocab_size=256, takes_embeddings=False))
    served, prepared = replace(pooled.make(b"wicked"), boot=boot), list[tuple[str, object]]()
    monkeypatch.setattr(served_model, "make", lambda given: served)
    original = prepare_worker.RequestPreparer.prepare

    def prepare(self: prepare_worker.RequestPreparer, work: Work, raw: bytes) -> object:
        prepared.append((work.kind, original(self, work, raw)))
        return prepared[-1][1]

    monkeypatch.setattr(prepare_worker.RequestPreparer, "prepare", prepare)
    assert prepare_worker.make(b"") is served
    assert [kind for kind, _ in prepared] == ["chat", "text"]
    assert all(isinstance(one, Generation) for _, one in prepared)
