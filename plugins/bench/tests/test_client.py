"""The client against a server whose delays are known."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sse_server import SseServer

from llmk.api import ConfigError
from llmk_bench import figures, plots, runner
from llmk_bench.client import Client
from llmk_bench.load import Load
from llmk_bench.prompts import KINDS, Conversation, Prompts, Turn
from llmk_bench.response import BadResponse, Response
from llmk_bench.sample import Sample
from llmk_bench.server_process import NoServer, wait_for
from llmk_bench.target import COMPLETIONS, Target

LLMK = (sys.executable, "-m", "llmk")


@pytest.fixture
def served() -> Iterator[tuple[SseServer, str]]:
    """A server in a thread, and its URL."""
    server, loop, ready = SseServer(first=0.1, each=0.02), asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def start() -> None:
        listening = await server.start()
        ports.append(listening.sockets[0].getsockname()[1])
        ready.set()

    def work() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        serving = asyncio.all_tasks(loop)
        for task in serving:
            task.cancel()
        if serving:
            loop.run_until_complete(asyncio.wait(serving))
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server, f"http://127.0.0.1:{ports[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def send(url: str, *conversations: Conversation, load: Load | None = None, **target: Any) -> list[Sample]:
    """Sends all at once, from this process."""

    async def run() -> list[Sample]:
        made = load or Load(requests=len(conversations))
        client = Client(Target(url=url, model="words", **target), made, asyncio.get_running_loop().time())
        return await client.run(list(zip(made.arrivals(), conversations, strict=True)))

    return asyncio.run(run())


def talk(*prompts: str | list[int], new: int = 5) -> Conversation:
    return Conversation([Turn(prompt, new) for prompt in prompts])


@pytest.mark.parametrize("path", ["/v1/chat/completions", COMPLETIONS])
def test_times_are_those_of_the_server(served: tuple[SseServer, str], path: str) -> None:
    samples = send(served[1], *[talk("a b c") for _ in range(8)], path=path)
    assert [sample.error for sample in samples] == [""] * 8
    for sample in samples:
        assert (sample.tokens, len(sample.arrivals)) == (5, 5), "the last event, without text, is no token"
        assert sample.prompt_tokens > 0
    best = min(samples, key=lambda sample: sample.ttft)
    assert 0.1 <= best.ttft < 0.2
    quick = min(sample.tpot or 0 for sample in samples)
    assert 0.01 < quick < 0.04


def test_connections_are_used_again(served: tuple[SseServer, str]) -> None:
    send(served[1], *[talk("a") for _ in range(6)], load=Load(requests=6, concurrency=2))
    assert served[0].connections == 2


def test_turns_follow_each_other_with_what_was_said(served: tuple[SseServer, str]) -> None:
    samples = send(served[1], talk("one", "two", "three", new=2))
    assert [sample.turn for sample in samples] == [0, 1, 2]
    said = [message["content"] for message in served[0].bodies[-1]["messages"]]
    assert said == ["one", " word word", "two", " word word", "three"]
    assert [message["role"] for message in served[0].bodies[-1]["messages"]][:2] == ["user", "assistant"]


@pytest.mark.parametrize(("prompt", "why"), [("fail", "503"), ("break", "closed the connection")])
def test_failures_are_failures(served: tuple[SseServer, str], prompt: str, why: str) -> None:
    bad, good = send(served[1], talk(prompt), talk("fine"))
    assert why in bad.error
    assert not good.error
    found = figures.summarize([bad, good])
    assert (found["requests"], found["failed"]) == (2, 1)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(NoServer, match=r"http://127\.0\.0\.1:9"):
        wait_for("http://127.0.0.1:9", 0)
    with pytest.raises(ConfigError, match="no URL"):
        wait_for("localhost:8000", 0)


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_responses_are_read_however_they_are_cut(size: int) -> None:
    events: list[bytes] = []
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    data += b"Transfer-Encoding: chunked\r\n\r\n"
    for chunk in (b'data: {"a":1}\r\n\r\nda', b'ta:{"b":2}\n\n: comment\n', b"event: x\ndata: [DONE]\n\n"):
        data += b"%X;ext=1\r\n%s\r\n" % (len(chunk), chunk)
    data += b"0\r\nTrailer: x\r\n\r\n"
    response = Response(lambda event, now: events.append(event))
    for at in range(0, len(data), size):
        response.feed(data[at : at + size])
    assert events == [b'{"a":1}', b'{"b":2}', b"[DONE]"]
    assert response.done
    assert response.reusable


def test_other_bodies_are_collected() -> None:
    response = Response(lambda event, now: None)
    response.feed(b"HTTP/1.1 429 Slow\r\ncontent-length: 4\r\n\r\nwa")
    assert not response.done
    response.feed(b"it")
    assert (response.status, bytes(response.body), response.done) == (429, b"wait", True)
    until_the_end = Response(lambda event, now: None)
    until_the_end.feed(b"HTTP/1.0 200 OK\r\n\r\nabc")
    until_the_end.end()
    assert (until_the_end.done, until_the_end.reusable) == (True, False)
    with pytest.raises(BadResponse):
        Response(lambda event, now: None).feed(b"SSH-2.0-OpenSSH\r\n\r\n")


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 8.0])
def test_arrivals_have_their_rate_and_shape(burstiness: float) -> None:
    times = Load(requests=20_000, rate=50.0, burstiness=burstiness).arrivals()
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    spread = sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2
    assert spread == pytest.approx(1 / burstiness, rel=0.15), "the squared coefficient of variation of a gamma process"


def test_prompts_have_their_lengths_and_are_the_same_for_a_seed(tmp_path: Path) -> None:
    (first,) = Prompts(prompt=40, new=7).conversations(1)
    assert isinstance(first.turns[0].prompt, str)
    assert (len(first.turns[0].prompt.split()), first.turns[0].new) == (40, 7)
    assert Prompts(seed=3).conversations(4) == Prompts(seed=3).conversations(4)
    assert Prompts(seed=3).conversations(4) != Prompts(seed=4).conversations(4)
    ids = Prompts(prompt=9, vocabulary=200).conversations(1)[0].turns[0].prompt
    assert len(ids) == 9
    assert all(100 <= int(one) < 200 for one in ids)
    lengths = {len(str(talk.turns[0].prompt).split()) for talk in Prompts(prompt=100, spread=0.5).conversations(200)}
    assert 50 <= min(lengths) < 60
    assert 140 < max(lengths) <= 150
    shared = Prompts(kind="shared-prefix", prompt=5, prefixes=2, prefix_tokens=20).conversations(50)
    assert len({tuple(str(talk.turns[0].prompt).split()[:20]) for talk in shared}) == 2
    assert set(KINDS) == {"random", "shared-prefix", "sharegpt"}


def test_sharegpt_files_are_read(tmp_path: Path) -> None:
    said = [("system", "s"), ("human", "q1"), ("gpt", "a b c"), ("human", "q2"), ("gpt", "d e")]
    entry = {"conversations": [{"from": who, "value": text} for who, text in said]}
    for text in (json.dumps([entry, {"conversations": []}]), f"{json.dumps(entry)}\n{json.dumps(entry)}\n"):
        (tmp_path / "talks").write_text(text)
        found = Prompts(kind="sharegpt", file=str(tmp_path / "talks"), turns=2).conversations(3)
        assert found == [Conversation([Turn("q1", 3), Turn("q2", 2)])] * 3
    for text, why in (("{", "can't be read"), ("[]", "no conversation")):
        (tmp_path / "talks").write_text(text)
        with pytest.raises(ConfigError, match=why):
            Prompts(kind="sharegpt", file=str(tmp_path / "talks")).conversations(1)


def test_figures_are_what_they_are_called() -> None:
    slow = Sample(due=0.0, wanted=3, sent=0.0, arrivals=[1.0, 1.5, 2.0], prompt_tokens=10, tokens=3)
    quick = Sample(due=1.0, wanted=3, sent=1.5, arrivals=[1.1, 1.2, 1.3], prompt_tokens=10, tokens=3)
    found = figures.summarize([slow, quick], {"ttft": 500.0, "tpot": 200.0})
    assert found["seconds"] == 2.0
    assert found["output_tokens_per_s"] == 3.0
    assert found["total_tokens_per_s"] == 13.0
    assert found["ttft_ms"]["p50"] == pytest.approx(550)
    assert found["tpot_ms"]["mean"] == pytest.approx(300)
    assert found["e2e_ms"]["max"] == pytest.approx(2000)
    assert found["itl_ms"]["p50"] == pytest.approx(300)
    assert (found["good"], found["goodput_per_s"], found["late"]) == (1, 0.5, 1)
    for text in ("ttft", "speed:3", "ttft:x"):
        with pytest.raises(ConfigError):
            figures.parse_targets([text])


def test_a_pareto_frontier_has_no_point_that_is_beaten() -> None:
    points = [(1.0, 9.0, "a"), (2.0, 8.0, "b"), (1.5, 7.0, "beaten"), (3.0, 1.0, "c")]
    assert [name for _, _, name in plots.frontier(points)] == ["a", "b", "c"]
    drawn = plots.pareto(points, "<title>")
    assert drawn.count("<circle") == 4
    assert "&lt;title&gt;" in drawn


def test_a_plot_names_what_differs_and_stays_inside() -> None:
    names = [f"rate-{rate}_concurrency-0_in-64_out-16" for rate in (4, 8)]
    drawn = plots.pareto([(10.0, 80.0, names[0]), (20.0, 60.0, names[1])], "first")
    assert re.search(r'text-anchor="start">rate-4<', drawn)
    assert re.search(r'text-anchor="end">rate-8<', drawn)
    assert plots.differing(names[:1]) == [names[0].replace("_", " ")]


def test_conversations_of_a_file_have_its_name_and_no_other_lengths(
    served: tuple[SseServer, str], tmp_path: Path
) -> None:
    talk = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello there"}]}
    (tmp_path / "talks.json").write_text(json.dumps([talk]))
    options = ("--data", "sharegpt", "--file", "talks.json", "--requests", "2", "--rate", "50")
    assert bench(tmp_path, "--url", served[1], *options).stdout.startswith(
        "rate-50_concurrency-0_talks: 2 requests, 0 failed"
    )
    refused = bench(tmp_path, "--url", served[1], *options, "--output-tokens", "8", "16")
    assert refused.returncode == 2
    assert "has lengths of its own" in refused.stderr


def test_a_load_from_several_processes(served: tuple[SseServer, str]) -> None:
    load = Load(requests=9, rate=50.0)
    target = Target(url=served[1], model="words")
    outcome = runner.run(target, load, Prompts(prompt=4, new=3, alongside=50).conversations(9), processes=3)
    assert [sample.error for sample in outcome.samples] == [""] * 10
    assert sum(sample.special for sample in outcome.samples) == 1
    assert all(sample.sent >= sample.due - 1e-3 for sample in outcome.samples)


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*LLMK, "bench", "serve", "--settle", "0", "--warm-up", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_sweeps_resume(served: tuple[SseServer, str], tmp_path: Path) -> None:
    load = ("--url", served[1], "--requests", "3", "--prompt-tokens", "4", "--output-tokens", "9")
    named = ("--experiment-name", "one", "--goodput", "ttft:5000")
    done = bench(tmp_path, *load, "--concurrency", "1", *named)
    assert done.returncode == 0, done.stderr
    assert "goodput" in done.stdout
    sent = len(served[0].bodies)
    again = bench(tmp_path, *load, "--concurrency", "1", "2", *named)
    assert again.returncode != 0
    assert "--resume" in again.stderr
    resumed = bench(tmp_path, *load, "--concurrency", "1", "2", *named, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "measured before" in resumed.stderr
    assert len(served[0].bodies) == sent + 4, "one to warm up, three of the second point"
    folder = tmp_path / "results/one"
    assert len(list(folder.glob("rate-inf*.json"))) == len(list(folder.glob("rate-inf*.svg"))) == 2
    assert (folder / "pareto.svg").read_text().count("<circle") == 2
    assert len((folder / "summary.jsonl").read_text().splitlines()) == 2
    other = bench(tmp_path, *load, "--concurrency", "1", *named, "--resume", "--burstiness", "2")
    assert other.returncode != 0
    assert "burstiness" in other.stderr


def test_failed_requests_fail_the_command(served: tuple[SseServer, str], tmp_path: Path) -> None:
    talks = [{"conversations": [{"from": "human", "value": "fail"}, {"from": "gpt", "value": "a"}]}]
    (tmp_path / "talks").write_text(json.dumps(talks))
    options = ("--data", "sharegpt", "--file", "talks", "--requests", "2", "--output", "out.json")
    done = bench(tmp_path, "--url", served[1], *options)
    assert done.returncode == 1
    assert "503" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())[0]["figures"]["failed"] == 2
