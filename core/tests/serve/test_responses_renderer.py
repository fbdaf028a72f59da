"""Events of the Responses API: complete sequences, of which the response is the fold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from llmk.api import (
    AnswerHead,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk.engine.wire.request import TokenLogprobs
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.responses import route
from llmk.serve.responses.renderer import ResponseRenderer

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
HEAD = AnswerHead("ab" * 16, 1_700_000_000, "m")
USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=7, reasoning_tokens=3)


class Characters:
    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def renderer(**options: Any) -> ResponseRenderer:
    tools = [{"type": "function", "name": "get", "parameters": {}}]
    made = route.Respond().translate({"input": "hi", "tools": tools, "instructions": "Be kind."}, {})
    return ResponseRenderer(HEAD, made.options["echo"], **options)


def frames_of(
    deltas: Sequence[Sequence[Event]], *, finish: str = "stop", rendering: ResponseRenderer | None = None
) -> list[dict[str, Any]]:
    """The data of all frames, as a client gets them."""
    rendering = rendering or renderer()
    frames = []
    for at, events in enumerate(deltas):
        reason = finish if at == len(deltas) - 1 else None
        frames += list(rendering.frames(ChoiceDelta(0, events, finish_reason=reason), USAGE))
    frames += list(rendering.last_frames(USAGE))
    assert all(frame.event == frame.data["type"] for frame in frames)
    return [msgspec.json.decode(msgspec.json.encode(frame.data)) for frame in frames]


def whole_of(deltas: Sequence[Sequence[Event]], *, finish: str = "stop") -> dict[str, Any]:
    rendering = renderer()
    for at, events in enumerate(deltas):
        reason = finish if at == len(deltas) - 1 else None
        rendering.add(ChoiceDelta(0, events, finish_reason=reason), USAGE)
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(rendering.whole(USAGE)))
    return whole


def folded(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that deltas add up to, with checks that what was added is done, once, with the same indices."""
    items: dict[int, dict[str, Any]] = {}
    done: set[int] = set()
    parts: set[int] = set()
    for frame in frames:
        kind, at = frame["type"], frame.get("output_index")
        if kind == "response.output_item.added":
            assert at == len(items)
            items[at] = frame["item"]
        elif at is not None:
            assert at not in done
            assert frame.get("item_id", frame.get("item", {}).get("id")) == items[at]["id"]
        if kind == "response.content_part.added":
            assert frame["content_index"] == len(items[at]["content"]) == 0
            items[at]["content"].append(frame["part"])
            parts.add(at)
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            items[at]["content"][frame["content_index"]]["text"] += frame["delta"]
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert items[at]["content"][0]["text"] == frame["text"]
        elif kind == "response.content_part.done":
            assert items[at]["content"][0] == frame["part"]
            parts.remove(at)
        elif kind == "response.function_call_arguments.delta":
            items[at]["arguments"] += frame["delta"]
        elif kind == "response.function_call_arguments.done":
            assert items[at]["arguments"] == frame["arguments"]
        elif kind == "response.output_item.done":
            items[at]["status"] = frame["item"]["status"]
            assert items[at] == frame["item"]
            done.add(at)
    assert not parts
    assert done == set(items)
    return [items[at] for at in sorted(items)]


def check(deltas: Sequence[Sequence[Event]], finish: str) -> dict[str, Any]:
    """Checks a stream, and returns its complete response."""
    frames = frames_of(deltas, finish=finish)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames[:2]] == ["response.created", "response.in_progress"]
    ending = "incomplete" if finish == "length" else "completed"
    assert [frame["type"] for frame in frames].count(f"response.{ending}") == 1
    assert frames[-1]["type"] == f"response.{ending}"
    final: dict[str, Any] = frames[-1]["response"]
    assert folded(frames) == final["output"]
    whole = whole_of(deltas, finish=finish)
    for response in (final, whole):
        Response.model_validate(response)
        assert response["status"] == ending
        response["completed_at"] = 0
    assert whole == final
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for frame in frames:
        state.handle_event(EVENTS.validate_python(frame))
    return final


TEXTS = st.sampled_from(["Hello", " ", "\n\n", "world", "é", "{", ""])


@st.composite
def scripts(draw: st.DrawFn) -> list[list[Event]]:
    """Events as parsers yield them: calls start, go on and end, in between texts; in deltas of any size."""
    events: list[Event] = []
    running: list[int] = []
    started = 0
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["text", "text", "reasoning", "start", "arguments", "end", "fail"]))
        if kind == "text":
            events.append(TextDelta(draw(TEXTS)))
        elif kind == "reasoning":
            events.append(ReasoningDelta(draw(TEXTS)))
        elif kind == "start":
            events.append(ToolCallStart(started, "get", draw(st.sampled_from([None, f"id{started}"]))))
            running.append(started)
            started += 1
        elif running:
            index = draw(st.sampled_from(running))
            if kind == "arguments":
                events.append(ToolCallArguments(index, draw(TEXTS)))
            else:
                running.remove(index)
                events.append(ToolCallEnd(index) if kind == "end" else ToolCallFailed(index, draw(TEXTS)))
    events += [ToolCallEnd(index) for index in running]
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    bounds = [0, *cuts, len(events)]
    return [events[start:end] for start, end in pairwise(bounds)]


@pytest.mark.slow
@given(scripts(), st.sampled_from(["stop", "length", "tool_calls"]))
@settings(max_examples=300, deadline=None)
def test_any_response_is_the_fold_of_its_events(script: list[list[Event]], finish: str) -> None:
    check(script, finish)


@given(scripts())
@settings(max_examples=100, deadline=None)
def test_how_output_is_cut_changes_only_deltas(script: list[list[Event]]) -> None:
    once = check([[event for events in script for event in events]], "stop")
    assert check(script, "stop") == once


def kinds(deltas: Sequence[Sequence[Event]], **options: Any) -> list[str]:
    return [frame["type"].removeprefix("response.") for frame in frames_of(deltas, **options)]


def test_the_sequence_of_a_text() -> None:
    assert kinds([[TextDelta("Hel")], [TextDelta("lo")], []]) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_the_sequence_of_thinking_and_a_call() -> None:
    call = [ToolCallStart(0, "get", "c1"), ToolCallArguments(0, "{"), ToolCallArguments(0, "}"), ToolCallEnd(0)]
    deltas: list[list[Event]] = [[ReasoningDelta("Hm")], [TextDelta("\n\n")], [*call]]
    assert kinds(deltas, finish="tool_calls")[2:-1] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    final = check(deltas, "tool_calls")
    assert [item["type"] for item in final["output"]] == ["reasoning", "function_call"]
    assert final["output"][1]["call_id"] == "c1"
    assert final["usage"]["input_tokens_details"]["cached_tokens"] == 2
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert final["usage"]["total_tokens"] == 12


def test_a_failed_call_becomes_text() -> None:
    final = check([[ToolCallStart(0, "get"), ToolCallArguments(0, '{"a')], [ToolCallFailed(0, '<call>{"a')]], "length")
    call, message = final["output"]
    assert call["status"] == "incomplete"
    assert message["content"][0]["text"] == '<call>{"a'
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}


def test_white_space_alone_is_a_message_only_without_others() -> None:
    assert check([[TextDelta("\n\n")]], "stop")["output"][0]["content"][0]["text"] == "\n\n"
    assert check([[TextDelta(" ")], [TextDelta("a")]], "stop")["output"][0]["content"][0]["text"] == " a"
    assert check([[]], "stop")["output"][0]["content"][0]["text"] == ""


def test_what_the_response_repeats() -> None:
    final = check([[TextDelta("a")]], "stop")
    assert final["instructions"] == "Be kind."
    assert final["tools"][0]["name"] == "get"
    assert final["store"] is True
    assert final["id"] == "resp_" + "ab" * 16


def test_encrypted_content() -> None:
    frames = frames_of([[ReasoningDelta("Hm")]], rendering=renderer(encrypted=True))
    (item,) = frames[-1]["response"]["output"]
    assert item["encrypted_content"].startswith("llmk1.")
    (plain,) = frames_of([[ReasoningDelta("Hm")]])[-1]["response"]["output"]
    assert plain["encrypted_content"] is None


def entries(text: str) -> list[TokenLogprobs]:
    return [TokenLogprobs(ord(character), -0.5, 1, ((65, -1.0),)) for character in text]


def plain(data: Any) -> Any:
    """Data as a client gets it."""
    return msgspec.json.decode(msgspec.json.encode(data))


def logprobs_of(*deltas: tuple[str, list[Event]]) -> tuple[str, dict[str, Any]]:
    """The tokens of all deltas of the text, and the final part."""
    rendering = renderer(tokens=Characters())
    frames: list[Any] = []
    for at, (tokens, events) in enumerate(deltas):
        reason = "stop" if at == len(deltas) - 1 else None
        delta = ChoiceDelta(0, events, logprobs=entries(tokens), finish_reason=reason)
        frames += plain([frame.data for frame in rendering.frames(delta, USAGE)])
    tokens = "".join(
        entry["token"]
        for frame in frames
        if frame["type"] == "response.output_text.delta"
        for entry in frame["logprobs"]
    )
    return tokens, plain(rendering.output)[-1]["content"][0]


def test_logprobs_are_those_of_the_text() -> None:
    tokens, part = logprobs_of(("Hm", [ReasoningDelta("Hm")]), (">a", [TextDelta("a")]), ("b", [TextDelta("b")]))
    assert tokens == "ab"
    assert "".join(entry["token"] for entry in part["logprobs"]) == "ab"
    assert part["logprobs"][0]["top_logprobs"] == [{"token": "A", "logprob": -1.0, "bytes": [65]}]


def test_logprobs_of_text_that_is_held_back_come_with_it() -> None:
    assert logprobs_of(("a", [TextDelta("a")]), ("b", []), ("c", [TextDelta("bc")]))[0] == "abc"


def test_a_background_response_starts_queued() -> None:
    frames = frames_of([[TextDelta("a")]], rendering=renderer(queued=True))
    assert [frame["type"] for frame in frames[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [frame["response"]["status"] for frame in frames[:3]] == ["queued", "queued", "in_progress"]


@pytest.mark.parametrize(
    ("type", "code"), [("server_error", "server_error"), ("rate_limit_error", "rate_limit_exceeded")]
)
def test_an_error_closes_what_is_open(type: str, code: str) -> None:
    rendering = renderer()
    frames = list(rendering.frames(ChoiceDelta(0, [TextDelta("a"), ToolCallStart(0, "get")]), USAGE))
    frames += rendering.failed({"message": "it broke", "type": type}, USAGE)
    data = [msgspec.json.decode(msgspec.json.encode(frame.data)) for frame in frames]
    response = data[-1]["response"]
    assert folded(data) == response["output"]
    assert response["error"] == {"code": code, "message": "it broke"}
    EVENTS.validate_python(data[-1])
