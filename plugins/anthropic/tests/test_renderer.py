"""Streamed and complete messages say the same for all that parsers may yield."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmk.api import (
    AnswerHead,
    Event,
    Frame,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk_anthropic.messages import Messages
from llmk_anthropic.renderer import MessageRenderer

HEAD = AnswerHead("0" * 32, 1, "demo")


@dataclass
class Delta:
    events: Sequence[Event]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int = 0


@dataclass
class Counts:
    prompt_tokens: int = 12
    cached_tokens: int = 8
    pinned_tokens: Mapping[float, int] = field(default_factory=dict)
    completion_tokens: int = 5
    reasoning_tokens: int = 2


def opened(max_tokens: int = 5, *, hide: bool = False) -> MessageRenderer:
    return Messages().open(HEAD, {"max_tokens": max_tokens, "hide_thinking": hide})


def streamed(deltas: Sequence[Delta], made: MessageRenderer | None = None) -> list[Frame]:
    made = made or opened()
    frames = [frame for delta in deltas for frame in made.frames(delta, Counts())]
    return [*frames, *made.last_frames(Counts())]


def whole(deltas: Sequence[Delta], made: MessageRenderer | None = None) -> Any:
    made = made or opened()
    for delta in deltas:
        made.add(delta, Counts())
    return made.whole(Counts())


def fold(frames: Sequence[Frame]) -> Any:
    """The message as a client puts it together; every event must be where the API has it."""
    assert [frame.event for frame in frames] == [frame.data["type"] for frame in frames]
    first, *events = [json.loads(json.dumps(frame.data)) for frame in frames if frame.event != "ping"]
    assert first["type"] == "message_start"
    message = first["message"]
    assert message["content"] == []
    is_open, text = False, ""
    for event in events[:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            is_open, text = True, ""
            message["content"].append(event["content_block"])
            continue
        assert is_open
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(text)
            continue
        assert event["type"] == "content_block_delta"
        match event["delta"]:
            case {"type": "text_delta", "text": piece} if block["type"] == "text" and piece:
                block["text"] += piece
            case {"type": "thinking_delta", "thinking": piece} if block["type"] == "thinking" and piece:
                block["thinking"] += piece
            case {"type": "signature_delta", "signature": signature} if block["type"] == "thinking":
                assert not block["signature"]
                block["signature"] = signature
            case {"type": "input_json_delta", "partial_json": piece} if block["type"] == "tool_use":
                text += piece
            case other:
                raise AssertionError(other)
    assert not is_open
    end, stop = events[-2:]
    assert (end["type"], stop) == ("message_delta", {"type": "message_stop"})
    message["usage"] |= end["usage"]
    return {**message, **end["delta"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text('a"\\é', max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
TEXTS = st.text("aé \n", max_size=4)


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """The deltas of a response with calls that overlap each other and anything else."""
    events: list[Event] = []
    left: dict[int, list[str]] = {}
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "start", "piece", "end", "fail"]), max_size=20)):
        if kind == "text":
            events.append(TextDelta(draw(TEXTS)))
        elif kind == "thought":
            events.append(ReasoningDelta(draw(TEXTS)))
        elif kind == "start":
            text = json.dumps(draw(st.dictionaries(TEXTS, JSON, max_size=2)))
            cut = draw(st.integers(0, len(text)))
            left[num_calls] = [text[:cut], text[cut:]]
            events.append(ToolCallStart(num_calls, draw(st.sampled_from("ab")), draw(st.sampled_from([None, "own"]))))
            num_calls += 1
        elif left:
            index = draw(st.sampled_from(sorted(left)))
            events += _ended(index, left, kind)
    for index in sorted(left):
        events += _ended(index, left, draw(st.sampled_from(["end", "fail"])))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    deltas = [Delta(events[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    deltas[-1].finish_reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return deltas


def _ended(index: int, left: dict[int, list[str]], kind: str) -> list[Event]:
    if kind == "piece":
        return [ToolCallArguments(index, left[index].pop(0))] if left[index] else []
    pieces = left.pop(index)
    if kind == "fail":
        return [ToolCallFailed(index, f"<call {index}>")]
    return [*(ToolCallArguments(index, piece) for piece in pieces), ToolCallEnd(index)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(answers(), st.booleans())
def test_whole_is_the_fold_of_the_frames(deltas: list[Delta], hide: bool) -> None:
    message = whole(deltas, opened(hide=hide))
    assert fold(streamed(deltas, opened(hide=hide))) == message
    events = [event for delta in deltas for event in delta.events]
    said = "".join(event.text for event in events if isinstance(event, TextDelta | ToolCallFailed))
    assert "".join(block["text"] for block in message["content"] if block["type"] == "text") == said
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    thinking = [block for block in message["content"] if block["type"] == "thinking"]
    assert "".join(block["thinking"] for block in thinking) == ("" if hide else thought)
    assert bool(thinking) == bool(thought)
    assert all(block["signature"] for block in thinking)
    ended = sum(isinstance(event, ToolCallEnd) for event in events)
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(ids) == ended
    assert len({id for id in ids if id != "own"}) == len([id for id in ids if id != "own"])


def test_several_kinds_in_one_delta() -> None:
    events: list[Event] = [
        ReasoningDelta("hm"),
        TextDelta("Let me"),
        TextDelta(" see."),
        ToolCallStart(0, "get_weather"),
        ToolCallArguments(0, '{"city": "Par'),
        ToolCallArguments(0, 'is"}'),
        ToolCallEnd(0),
        ReasoningDelta("and"),
    ]
    message = whole([Delta(events, "tool_calls")])
    thinking, text, call, last = message["content"]
    assert (thinking["thinking"], last["thinking"]) == ("hm", "and")
    assert thinking["signature"] != last["signature"]
    assert text == {"type": "text", "text": "Let me see."}
    assert call["id"].startswith("toolu_")
    assert (call["name"], call["input"]) == ("get_weather", {"city": "Paris"})
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 8,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    }


def test_input_tokens_add_up() -> None:
    """Read, created and other ones are the prompt."""
    renderer = opened()
    counts = Counts(prompt_tokens=100, cached_tokens=30, pinned_tokens={3600.0: 16, 300.0: 32})
    renderer.add(Delta([TextDelta("x")], "stop"), counts)
    usage = renderer.whole(counts)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (22, 30)
    assert usage["cache_creation_input_tokens"] == 48
    assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": 32, "ephemeral_1h_input_tokens": 16}


def test_a_call_that_fails_is_text() -> None:
    events: list[Event] = [ToolCallStart(0, "a"), ToolCallArguments(0, '{"b'), ToolCallFailed(0, '<tool_call>{"b')]
    frames = streamed([Delta(events, "length")])
    assert fold(frames)["content"] == [{"type": "text", "text": '<tool_call>{"b'}]


@pytest.mark.parametrize(
    ("finish", "stop", "max_tokens", "expected"),
    [
        ("stop", None, 5, ("end_turn", None)),
        ("stop", 17, 5, ("end_turn", None)),
        ("stop", "END", 5, ("stop_sequence", "END")),
        ("length", None, 5, ("max_tokens", None)),
        ("length", None, 6, ("model_context_window_exceeded", None)),
        ("tool_calls", None, 5, ("tool_use", None)),
    ],
)
def test_stop_reasons(finish: str, stop: str | int | None, max_tokens: int, expected: tuple[str, str | None]) -> None:
    deltas = [Delta([TextDelta("a")], finish, stop)]
    message = whole(deltas, opened(max_tokens))
    assert (message["stop_reason"], message["stop_sequence"]) == expected
    assert fold(streamed(deltas, opened(max_tokens))) == message


def test_a_stream_without_output_is_complete() -> None:
    assert fold(streamed([]))["content"] == []
    assert whole([])["stop_reason"] == "end_turn"


def test_a_long_call_is_shown_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = opened()
    assert [frame.event for frame in made.frames(Delta([ToolCallStart(0, "a")]), Counts())] == ["message_start", "ping"]
    sent = []
    for _ in range(24):
        now += 1
        sent += [frame.event for frame in made.frames(Delta([ToolCallArguments(0, " ")]), Counts())]
    assert sent == ["ping", "ping"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1e999}', {"a": 1.7976931348623157e308}),
        (f'{{"a": {"9" * 5000}}}', {"a": 1.7976931348623157e308}),
        ("[1]", {"value": [1]}),
        ("", {}),
    ],
)
def test_odd_arguments_are_objects_that_can_be_sent(text: str, value: Any) -> None:
    (call,) = whole([Delta([ToolCallStart(0, "a"), ToolCallArguments(0, text), ToolCallEnd(0)])])["content"]
    assert call["input"] == value
