"""Pinned prefixes through a real server: by an operator's request, and from the configuration."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, until

pytestmark = pytest.mark.slow_file

SYSTEM = {"role": "system", "content": "You are a patient teacher. " * 12}
PINS = [{"id": "start", "text": " ".join(["Once upon a time there was a very small boat."] * 4)}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(
        tmp_path_factory.mktemp("pins") / "log",
        *("--port", "0", "--server.admin-keys", "open", "--max-model-len", "256", "--cache.num-blocks", "64"),
        *("--set", f"cache.pins={json.dumps(PINS)}"),
    )
    yield server
    server.close()


def call(served: Served, method: str, path: str = "", body: Any = None, key: str = "open") -> tuple[int, Any]:
    headers = {"content-type": "application/json", "x-admin-key": key}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served.url + "/v1/cache/pins" + path, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def cached(served: Served, path: str, body: Any) -> int:
    """Prompt tokens of a request that were in the cache."""
    status, answer = served.post(path, {"model": served.model, "max_tokens": 1, **body})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def flood(served: Served) -> None:
    """Uses every block that is not pinned."""
    for number in range(8):
        body = {"model": served.model, "prompt": [5 + number] * 250, "max_tokens": 1}
        assert served.post("/v1/completions", body)[0] == 200


def test_what_is_pinned_stays_and_what_is_unpinned_goes(served: Served) -> None:
    status, pin = call(served, "POST", body={"id": "teacher", "messages": [SYSTEM]})
    assert status == 200
    assert pin["tokens"] > 50
    assert pin["expires_at"] is None
    flood(served)
    conversation = {"messages": [SYSTEM, {"role": "user", "content": "Hello!"}]}
    assert cached(served, "/v1/chat/completions", conversation) >= pin["tokens"]
    assert {"start", "teacher"} == {entry["id"] for entry in call(served, "GET")[1]["data"]}
    assert call(served, "DELETE", "/teacher") == (200, {"id": "teacher", "deleted": True})
    flood(served)
    assert cached(served, "/v1/chat/completions", conversation) < pin["tokens"]


def test_pins_of_the_configuration_are_there_from_the_start(served: Served) -> None:
    flood(served)
    (start,) = [pin for pin in call(served, "GET")[1]["data"] if pin["id"] == "start"]
    assert start["tokens"] >= 16
    assert cached(served, "/v1/completions", {"prompt": PINS[0]["text"] + " It"}) >= start["tokens"]


def test_a_pin_ends_with_its_time(served: Served) -> None:
    before = served.metric("llmk_kv_cache_blocks_pinned")
    body = {"id": "short", "prompt": "A short time is enough for this one, says the clock on the wall.", "seconds": 0.3}
    assert call(served, "POST", body=body)[0] == 200
    assert served.metric("llmk_kv_cache_blocks_pinned") > before
    until(lambda: "short" not in str(call(served, "GET")[1]))
    flood(served)
    assert served.metric("llmk_kv_cache_blocks_pinned") == before


@pytest.mark.parametrize(
    ("method", "path", "body", "key", "status", "words"),
    [
        ("GET", "", None, "wrong", 403, "server.admin_keys"),
        ("DELETE", "/nobody", None, "open", 404, "there is no pin 'nobody'"),
        ("POST", "", {"id": "x", "prompt": "Hi"}, "open", 400, "fill no block"),
        ("POST", "", {"id": "x", "prompt": "Hi", "seconds": -1}, "open", 400, "seconds"),
        ("POST", "", {"prompt": "Hi"}, "open", 400, "id"),
    ],
)
def test_refusals(served: Served, method: str, path: str, body: Any, key: str, status: int, words: str) -> None:
    found, answer = call(served, method, path, body, key)
    assert (found, words in answer["error"]["message"]) == (status, True), answer


def test_a_pin_that_names_no_text_keeps_the_server_from_starting(tmp_path: Path) -> None:
    pins = json.dumps([{"id": "x", "file": str(tmp_path / "missing")}])
    with pytest.raises(AssertionError, match=r"cache\.pins: 'x': .*missing can't be read"):
        Served(tmp_path / "log", "--port", "0", "--set", f"cache.pins={pins}")


def test_an_engine_that_is_started_again_pins_again(served: Served) -> None:
    body = {"id": "kept", "prompt": "What is pinned stays pinned, whatever becomes of the engine that pinned it."}
    status, pin = call(served, "POST", body=body)
    assert status == 200
    pinned = served.metric("llmk_kv_cache_blocks_pinned")
    engine = served.engine()
    assert engine is not None
    engine.kill()
    until(lambda: served.metric("llmk_engine_restarts_total") >= 1, what="the engine was not started again")
    until(lambda: served.metric("llmk_kv_cache_blocks_pinned") == pinned)
    flood(served)
    assert cached(served, "/v1/completions", {"prompt": body["prompt"] + " Yes"}) >= pin["tokens"]


def test_a_pin_that_was_dropped_for_a_request_is_not_listed(tmp_path: Path) -> None:
    flags = ("--port", "0", "--server.admin-keys", "open", "--max-model-len", "256", "--cache.num-blocks", "18")
    served = Served(tmp_path / "log", *flags)
    try:
        body = {"id": "short", "prompt": "What is pinned stays pinned, but for a request that is alone. " * 3}
        assert call(served, "POST", body=body)[0] == 200
        assert [pin["id"] for pin in call(served, "GET")[1]["data"]] == ["short"]
        long = {"model": served.model, "prompt": [5] * 190, "max_tokens": 60, "ignore_eos": True}
        assert served.post("/v1/completions", long)[0] == 200
        assert served.metric("llmk_kv_cache_blocks_pinned") == 0
        assert call(served, "GET")[1]["data"] == []
        assert call(served, "DELETE", "/short")[0] == 200, "or an engine that is started again would pin it again"
        assert call(served, "DELETE", "/short")[0] == 404
    finally:
        served.close()
