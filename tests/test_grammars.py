"""Grammars of requests, refused by a real server where they can't be enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served

pytestmark = pytest.mark.slow

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
    assert json.loads(server.get("/v1/plan")[1])["grammars"] == ["regex", "choice", "json"]


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ({"regex": "(a"}, "structured_outputs: the regex can't be used: unclosed group"),
        ({"regex": r"[^\s\S]"}, "structured_outputs: the regex can't be used: nothing matches it"),
        ({"choice": []}, "structured_outputs: choice has no entry"),
        ({"json": {"not": {}}}, "structured_outputs: the json can't be used: Unimplemented keys"),
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
