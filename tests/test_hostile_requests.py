"""Whatever one request holds, or a parser does with its answer, ``/health`` answers and others are served."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

import pytest
from installed import install
from served import Served, until

pytestmark = pytest.mark.slow_file

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPTLY = 1.0
"""Seconds within which ``/health`` must answer. What this catches took from 2.8 s to minutes."""
SPECS = """
    from llmk.api import OK, ParserSpec, hookimpl

    @hookimpl
    def llmk_reasoning_parsers():
        return [ParserSpec(id="wicked.parser", name="wicked", implementation="wicked_parser:Wicked",
                           claims=lambda query: OK)]
    """
PARSER = """
    import os, re, sys, time
    from llmk.api import TextDelta

    class Wicked:
        '''Does at the answer's first piece what the end of the prompt names.'''
        def __init__(self, context):
            self.tail, self.first = context.prompt_tail, True

        def push(self, text):
            if "DO-LOOP" in self.tail:
                while True:
                    pass
            if "DO-SLEEP" in self.tail:
                time.sleep(1e9)
            if "DO-REGEX" in self.tail:
                re.match(r"(a+)+$", "a" * 60 + "!")
            if "DO-EXIT" in self.tail:
                sys.exit(1)
            if "DO-END" in self.tail:
                os._exit(9)
            return [TextDelta(text)]

        def finish(self):
            return []
    """


def say(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("log") / "log", "--port", "0")) as served:
        yield served


@pytest.fixture(scope="module")
def wicked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    site = install(tmp_path_factory.mktemp("site"), "wicked", dedent(SPECS), wicked_parser=dedent(PARSER))
    environment = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    settings = ("--select.reasoning-parser.use", "wicked.parser", "--server.plugin-seconds", "2")
    with closing(Served(tmp_path_factory.mktemp("log") / "log", "--port", "0", *settings, env=environment)) as served:
        yield served


class Probing:
    """Asks for ``/health`` all the time, and for an answer to a small request, and takes the longest time of each."""

    def __init__(self, served: Served) -> None:
        self._address = urlsplit(served.url)
        self._stop = threading.Event()
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Probing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            connection = http.client.HTTPConnection(str(self._address.hostname), self._address.port, timeout=60)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            connection.close()
            self.longest = max(self.longest, time.monotonic() - begun)
            time.sleep(0.02)


def post(served: Served, path: str, body: bytes) -> tuple[int, Any]:
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    with closing(connection):
        return response.status, json.loads(response.read())


def words(count: int) -> list[str]:
    return [f"word{number}" for number in range(count)]


HOSTILE: dict[str, tuple[str, Any, str]] = {
    "a prompt of 3 MB": (TEXT, {"prompt": "a" * 3_000_000}, "context"),
    "a conversation of 14 MB": (CHAT, say("hello " * 2_300_000), "context"),
    "100,000 messages that are none": (CHAT, {"messages": [{"x": 1}] * 100_000}, "limits.messages"),
    "as many as may be": (CHAT, {"messages": [{"x": 1}] * 10_000}, "messages[0].x"),
    "parts that are none": (
        CHAT, {"messages": [{"role": "user", "content": [{"y": 1}] * 50_000}]}, "messages[0].content[0]"
    ),
    "200,000 bad words": (TEXT, {"prompt": "a", "bad_words": words(200_000)}, "limits.bad_words"),
    "a bad word of 4 MB": (TEXT, {"prompt": "a", "bad_words": ["w" * 4_000_000]}, "limits.bad_words_characters"),
    "60,000 prompts": (TEXT, {"prompt": ["a"] * 60_000}, "limits.prompts"),
    "sequences that never fit": (TEXT, {"prompt": ["a"] * 1000, "n": 2}, "scheduler.max_num_seqs"),
    "40,000 stop strings": (TEXT, {"prompt": "a", "stop": words(40_000)}, "limits.stop"),
    "a bias for what is no token": (
        TEXT, {"prompt": "a", "logit_bias": dict.fromkeys(words(200_000), "x")}, "limits.logit_bias"
    ),
    "a name of 8 MB": (TEXT, {"prompt": "a", "x" * 8_000_000: 1}, "limits.name_characters"),
    "a model of 8 MB": (TEXT, {"prompt": "a", "model": "x" * 8_000_000}, "limits.name_characters"),
    "3 million texts to embed": ("/v1/io/embeddings", {"input": ["a"] * 3_000_000}, "limits.io_values"),
    "100,000 texts to embed": ("/v1/io/embeddings", {"input": ["a"] * 100_000}, "limits.prompts"),
    "a text of 14 MB to embed": ("/v1/io/embeddings", {"input": "a" * 14_000_000}, "context"),
    "deep nesting": (TEXT, b"[" * 5_000_000, "not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_and_stops_nobody(served: Served, name: str) -> None:
    path, body, told = HOSTILE[name]
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Probing(served) as probing, ThreadPoolExecutor() as pool:
        quiet = [pool.submit(served.post, CHAT, say("hi")) for _ in range(3)]
        status, answer = post(served, path, sent)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), answer
    assert told in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 4000
    assert all(one.result()[0] == 200 for one in quiet)
    assert probing.longest < PROMPTLY


def test_costly_requests_that_are_fine_stop_nobody(served: Served) -> None:
    text = "some plain words " * 24_000
    with Probing(served) as probing:
        status, answer = served.post("/tokenize", {"prompt": text, "return_token_strs": True})
        assert status == 200
        assert "".join(answer["token_strs"]) == text
        assert served.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": text})
        status, answer = served.post(TEXT, {"prompt": ["a"] * 500, "max_tokens": 1})
        assert (status, len(answer["choices"])) == (200, 500)
    assert probing.longest < PROMPTLY


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("DO-LOOP", "did not return within 2 s (server.plugin_seconds)"),
        ("DO-SLEEP", "did not return within 2 s (server.plugin_seconds)"),
        ("DO-REGEX", "did not return within 2 s (server.plugin_seconds)"),
        ("DO-EXIT", "SystemExit: 1"),
        ("DO-END", "ended its process"),
    ],
)
def test_a_parser_that_misbehaves_fails_its_request_alone(wicked: Served, what: str, told: str) -> None:
    _, wanted = wicked.post(CHAT, say("hi"))
    with Probing(wicked) as probing, ThreadPoolExecutor() as pool:
        streamed = pool.submit(lambda: list(wicked.stream(CHAT, {**say("hi"), "max_tokens": 200, "ignore_eos": True})))
        bad = pool.submit(wicked.post, CHAT, say(what))
        good = [pool.submit(wicked.post, CHAT, say("hi")) for _ in range(4)]
        answers = [one.result() for one in good]
        status, failed = bad.result()
    assert (status, failed["error"]["code"]) == (500, "parser_error")
    assert "wicked.parser" in failed["error"]["message"]
    assert told in failed["error"]["message"]
    assert all(answer["choices"] == wanted["choices"] for _, answer in answers)
    assert streamed.result()[-1]["choices"][0]["finish_reason"] == "length"
    assert probing.longest < PROMPTLY


def test_a_server_whose_parser_loops_ends_when_it_is_told_to(wicked: Served) -> None:
    """The last test of its server."""
    with ThreadPoolExecutor() as pool:
        bad = pool.submit(wicked.post, CHAT, say("DO-LOOP"))
        until(lambda: wicked.metric("llmk_http_requests_in_flight") > 1)
        children = wicked.children()
        wicked.process.terminate()
        assert wicked.wait() == 0
        assert bad.result()[0] == 500
    until(lambda: not any(child.is_running() for child in children), what="a worker outlives its server")
