"""Grammars of requests to a real server: enforced, or refused where they can't be; a grammar that fails is alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from installed import install
from served import Served, until

pytestmark = pytest.mark.slow_file

BOMB = {"type": "object", "properties": {f"p{n}": {"pattern": f"^a{{0,{n}}}b+[a-z]*$"} for n in range(1500)}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("server") / "log", "--port", "0", "--model.dtype", "float32")
    yield server
    server.close()


def ask(server: Served, grammar: Any, **fields: Any) -> tuple[int, Any]:
    body = {"prompt": "Say", "max_tokens": 1, "structured_outputs": grammar, **fields}
    return server.post("/v1/completions", body)


def test_the_plan_names_the_kinds(server: Served) -> None:
    assert json.loads(server.get("/v1/plan")[1])["grammars"] == ["regex", "choice", "json", "lark"]


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ({"regex": "(a"}, "structured_outputs: the regex can't be used: unclosed group"),
        ({"regex": r"[^\s\S]"}, "structured_outputs: the regex can't be used: nothing matches it"),
        ({"choice": []}, "structured_outputs: choice has no entry"),
        ({"json": {"not": {}}}, "structured_outputs: the json can't be used: not can't be enforced"),
        ({"json": "{"}, "structured_outputs: the json can't be used: it is not a JSON schema"),
        ({"json": {"type": "thing"}}, "structured_outputs: the json can't be used: Invalid type: thing"),
    ],
)
def test_what_can_not_be_enforced_is_answered_with_400(server: Served, grammar: Any, message: str) -> None:
    status, answer = ask(server, grammar)
    assert (status, answer["error"]["param"]) == (400, "structured_outputs"), answer
    assert answer["error"]["message"].startswith(message)


def test_large_grammars_are_prepared_and_the_server_lives(server: Served) -> None:
    for _ in range(3):
        assert ask(server, {"json": BOMB})[0] in (200, 400)
    assert ask(server, {"regex": "a" * 200_000})[1]["error"]["message"].startswith(
        "structured_outputs has 200000 bytes"
    )
    assert server.get("/health")[0] == 200


SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["EUR", "kg"]},
        "words": {"type": "array", "items": {"type": "string", "pattern": "^[a-zé]{1,6}$"}, "maxItems": 2},
    },
    "required": ["answer", "unit"],
    "additionalProperties": False,
}
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json": SCHEMA},
    {"regex": r"(yes|no), [a-z]{3,9}\."},
    {"choice": ["é", "ё", "e"]},
)
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "What is 17 + 25?\n"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is 17 + 25?"}]},
}


def check(grammar: dict[str, Any], text: str) -> None:
    if "json" in grammar:
        jsonschema.validate(json.loads(text), grammar["json"])
    elif "regex" in grammar:
        assert re.fullmatch(grammar["regex"], text), text
    else:
        assert text in grammar["choice"]


def outputs(server: Served, path: str, body: dict[str, Any], *, stream: bool) -> list[tuple[str, str]]:
    """Text and end of each choice."""
    if not stream:
        status, answer = server.post(path, body)
        assert status == 200, answer
        return [
            (one.get("text", one.get("message", {}).get("content")), one["finish_reason"]) for one in answer["choices"]
        ]
    texts, ends = [""] * body.get("n", 1), [""] * body.get("n", 1)
    for event in server.stream(path, body):
        for one in event["choices"]:
            delta = one.get("delta", {})
            if body.get("chat_template_kwargs") == {"enable_thinking": False}:
                assert not delta.get("reasoning_content")
            texts[one["index"]] += one.get("text") or delta.get("content") or ""
            ends[one["index"]] = one["finish_reason"] or ends[one["index"]]
    return list(zip(texts, ends, strict=True))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_outputs_match_whole_and_streamed(server: Served, path: str, stream: bool) -> None:
    """In one batch with requests without, and with a template that lets the model think or doesn't."""
    asked: list[tuple[dict[str, Any] | None, dict[str, Any]]] = []
    for number, grammar in enumerate([*GRAMMARS, None]):
        for sampling in ({"temperature": 0}, {"temperature": 1, "seed": number, "n": 3, "logprobs": True}):
            body: dict[str, Any] = {**ROUTES[path], **sampling, "max_tokens": 200 if grammar else 20}
            body["frequency_penalty"] = 1.0  # it would write spaces where it may, until its output is cut
            if "prompt" in body and body.pop("logprobs", False):
                body["logprobs"] = 2
            if "messages" in body and number % 2:
                body["chat_template_kwargs"] = {"enable_thinking": False}
            asked.append((grammar, body | ({"structured_outputs": grammar} if grammar else {})))
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda one: outputs(server, path, one[1], stream=stream) if one[0] else [], asked))
    for (grammar, body), choices in zip(asked, found, strict=True):
        if grammar is not None:
            assert len(choices) == body.get("n", 1)
            for text, end in choices:
                assert end == "stop"
                check(grammar, text)


def test_what_leaves_no_token_is_answered_with_400(server: Served) -> None:
    status, answer = ask(server, {"regex": "[0-9]{4}"}, allowed_token_ids=[0], max_tokens=9)
    assert status == 400, answer
    assert answer["error"]["message"].startswith("no token may be sampled: structured_outputs, allowed_token_ids")


SPECS = """
from llmk.api import GrammarSpec, hookimpl

@hookimpl
def llmk_grammars():
    where = "traps_plugins:Compiler"
    return [GrammarSpec(id="traps.grammar", name="traps", implementation=where, kinds=("regex",), score=99)]
"""
PLUGINS = """
import os

class Compiler:
    def __init__(self, context):
        self.is_engines = len(context.tokens) > 256

    def compile(self, kind, text):
        while text == "compile" and self.is_engines:
            pass
        return Compiled(text)

class Compiled:
    def __init__(self, text):
        self.text = text

    def start(self, end_token_ids):
        if self.text == "start":
            raise KeyError("nothing to start")
        return Output(self.text)

class Output:
    def __init__(self, text):
        self.text, self.at = text, 0

    def fill(self, bits):
        while self.text == "fill" and self.at == 2:
            pass
        if self.text == "exit" and self.at == 2:
            os._exit(7)
        if self.text != "nothing" or self.at < 2:
            bits[0] = 1 << 10

    def accept(self, tokens):
        self.at += len(tokens)
        if self.text == "accept" and self.at == 2:
            raise ValueError("not this one")

    def rollback(self, num_tokens):
        self.at -= num_tokens
"""
NAME = "the grammar compiler traps.grammar of traps 1.0"
SLOW = f"{NAME} did not return for 1 s (engine.plugin_seconds), and the engine's process was killed"
TRAPS = {
    "start": (500, f"{NAME} failed: KeyError: 'nothing to start'"),
    "accept": (500, f"{NAME} failed: ValueError: not this one"),
    "nothing": (400, "the grammar allows no token: nothing in the model's vocabulary continues the output"),
    "exit": (500, f"{NAME} was running when the engine's process ended with exit code 7"),
    "fill": (500, SLOW),
}


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Served]:
    site = install(tmp_path / "site", "traps", SPECS, traps_plugins=PLUGINS)
    path = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    options = ("--port", "0", "--engine.plugin-seconds", "1", "--engine.steps-in-flight", "2")
    server = Served(tmp_path / "log", *options, env=path)
    yield server
    server.close()


def test_a_grammar_that_fails_or_never_returns_fails_its_request_alone(trapped: Served) -> None:
    """Others, with a grammar and without, go on; after the third engine that one ended, none is called."""
    with ThreadPoolExecutor(2) as pool:
        for text, (status, message) in TRAPS.items():
            good = pool.submit(ask, trapped, {"regex": "any"}, max_tokens=60)
            free = pool.submit(trapped.post, "/v1/completions", {"prompt": "One", "ignore_eos": True, "max_tokens": 60})
            found, answer = ask(trapped, {"regex": text}, max_tokens=9)
            assert (found, answer["error"]["message"]) == (status, message)
            for other in (good, free):
                assert other.result()[0] == 200, other.result()
    assert ask(trapped, {"regex": "compile"}, max_tokens=9)[1]["error"]["message"] == SLOW
    until(lambda: trapped.metric("llmk_engine_restarts_total") == 3)
    assert "ended the engine too often" in ask(trapped, {"regex": "any"})[1]["error"]["message"]
