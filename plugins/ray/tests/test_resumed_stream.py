"""An answer that breaks off and is made again is one answer to its client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmk_ray.call import Call
from llmk_ray.resumed_stream import CannotResume, ResumedStream


def event(*choices: dict[str, Any], id: str = "a") -> bytes:
    return b"data: " + json.dumps({"id": id, "created": len(id), "choices": list(choices)}).encode() + b"\n\n"


def chat(text: str, index: int = 0, end: str | None = None, field: str = "content", **more: Any) -> dict[str, Any]:
    return {"index": index, "delta": {field: text, **more}, "finish_reason": end}


def read(parts: list[bytes]) -> tuple[dict[tuple[int, str], str], list[str], set[str]]:
    texts: dict[tuple[int, str], str] = {}
    ends, ids = [], set()
    for part in b"".join(parts).split(b"\n\n"):
        if part.startswith(b"data: {"):
            content = json.loads(part[6:])
            ids.add(content["id"])
            for choice in content["choices"]:
                for name, text in choice["delta"].items():
                    texts[choice["index"], name] = texts.get((choice["index"], name), "") + (text or "")
                ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    return texts, ends, ids


WHOLE = [
    event(chat("", field="role")),
    event(chat("think", field="reasoning_content")),
    event(chat("Once "), chat("Two ", 1)),
    event(chat("upon "), chat("it", 1, "stop")),
    event(chat("a time", end="length")),
    event(),
    b"data: [DONE]\n\n",
]


@pytest.mark.parametrize("sent", range(len(b"".join(WHOLE))))
def test_wherever_it_breaks_off_the_client_reads_one_answer(sent: int) -> None:
    stream, whole = ResumedStream(), b"".join(WHOLE)
    parts = list(stream.take(whole[:sent]))
    stream.restart()
    # Made again, with other chunks and another id.
    again = b"".join(
        [
            event(chat("thi", field="reasoning_content"), id="bb"),
            event(chat("nk", field="reasoning_content"), id="bb"),
            event(chat("Once upon"), chat("Two i", 1), id="bb"),
            event(chat(" a ti"), id="bb"),
            event(chat("t", 1, "stop"), id="bb"),
            event(chat("me", end="length"), id="bb"),
            b"data: [DONE]\n\n",
        ]
    )
    for start in range(0, len(again), 37):
        parts += stream.take(again[start : start + 37])
    texts, ends, ids = read(parts)
    wanted = {(0, "reasoning_content"): "think", (0, "content"): "Once upon a time", (1, "content"): "Two it"}
    assert {key: text for key, text in texts.items() if key[1] != "role"} == wanted
    assert sorted(ends) == ["length", "stop"]
    assert len(ids) == 1
    assert stream.done


def test_what_differs_is_not_mixed() -> None:
    stream = ResumedStream()
    list(stream.take(event(chat("Once upon"))))
    stream.restart()
    with pytest.raises(CannotResume, match="differs"):
        list(stream.take(event(chat("Once, up"))))


def test_what_is_shorter_is_not_taken_for_the_whole() -> None:
    stream = ResumedStream()
    list(stream.take(event(chat("Once upon"))))
    stream.restart()
    with pytest.raises(CannotResume, match="shorter"):
        list(stream.take(event(chat("Once", end="stop"))))


def test_tool_calls_are_not_made_twice() -> None:
    stream = ResumedStream()
    list(stream.take(event(chat("", tool_calls=[{"index": 0, "id": "x"}]))))
    with pytest.raises(CannotResume, match="tool calls"):
        stream.restart()


def test_calls_get_a_seed_and_say_what_routers_need() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 1000}], "prompt_cache_key": "s", "max_tokens": 7}
    call = Call.of("POST", "/v1/chat/completions", "", [("authorization", "Bearer k")], json.dumps(body).encode())
    assert json.loads(call.body)["seed"] == call.seed > 0
    facts = call.facts
    assert (facts.session, facts.expected_tokens, len(facts.blocks), call.streams) == ("s", 7, 4, False)
    longer = {"messages": [{"role": "user", "content": "x" * 1000 + "y" * 500}], "seed": 5, "stream": True}
    other = Call.of("POST", "/v1/chat/completions", "", [], json.dumps(longer).encode())
    assert (other.seed, other.streams) == (5, True)
    assert other.facts.blocks[:4] == facts.blocks
    assert len(other.facts.blocks) == 6
    salted = Call.of("POST", "/v1/chat/completions", "", [], json.dumps({**longer, "cache_salt": "z"}).encode())
    assert not set(salted.facts.blocks) & set(other.facts.blocks)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"prompt": 5, "seed": "x", "max_tokens": []}'])
def test_malformed_bodies_reach_a_replica_which_says_what_is_wrong(body: bytes) -> None:
    call = Call.of("POST", "/v1/completions", "", [], body)
    assert call.path == "/v1/completions"
    assert call.seed == 0 or b"prompt" in call.body
