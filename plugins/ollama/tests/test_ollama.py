"""Requests and responses of Ollama's API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmk.api import (
    AnswerHead,
    Event,
    Frame,
    ReasoningDelta,
    RequestError,
    ServedModelInfo,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    TranslatedRequest,
)
from llmk.kernel.loader import load_object
from llmk_ollama import specs
from llmk_ollama.chat import Chat
from llmk_ollama.embed import Embed, Embeddings
from llmk_ollama.generate import Generate
from llmk_ollama.models import Processes, Root, Show, Tags, Version

HI = [{"role": "user", "content": "Hi"}]
CALL = {"function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
MODEL = ServedModelInfo(
    name="demo",
    adapters=["demo-fr"],
    created=1_700_000_000,
    version="0.1.0",
    max_model_len=2048,
    chat_template="{{ messages }}",
    capabilities=["completion", "tools"],
    config={"model_type": "qwen3", "hidden_size": 64, "torch_dtype": "bfloat16"},
    num_parameters=7_600_000_000,
    num_bytes=15,
)


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


def chat(**fields: Any) -> TranslatedRequest:
    return Chat().translate({"model": "demo", "messages": HI, **fields}, {})


def generate(**fields: Any) -> TranslatedRequest:
    return Generate().translate({"model": "demo", "prompt": "Hi", **fields}, {})


@pytest.mark.hook("llmk_routes")
def test_every_route_can_be_loaded() -> None:
    routes = specs.llmk_routes()
    assert len({route.id for route in routes}) == len(routes)
    for route in routes:
        made = load_object(route.implementation, plugin="llmk-ollama", kind="route", id=route.id)()
        assert made.error(404, {"message": "why"}) == Frame({"error": "why"})


def test_the_least_requests() -> None:
    made = chat(model="demo:latest")
    assert made.body == {"model": "demo", "messages": HI, "max_tokens": 2**31 - 1}
    assert (made.kind, made.stream, made.thinking, made.fit_max_tokens) == ("chat", True, None, True)
    assert made.options["model"] == "demo:latest"
    assert generate().body["messages"] == HI
    with_system = generate(system="Be short.", stream=False)
    assert with_system.body["messages"] == [{"role": "system", "content": "Be short."}, *HI]
    assert not with_system.stream
    raw = generate(raw=True)
    assert (raw.kind, raw.body["prompt"]) == ("text", "Hi")


def test_options_are_sampling() -> None:
    options = {
        "num_predict": 20.0,
        "temperature": 1,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["END", ""],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.5,
        "num_ctx": 8192,
        "num_gpu": -1,
        "mirostat": 0,
        "tfs_z": 1.0,
        "frequency_penalty": None,
    }
    made = dict(chat(options=options).body)
    assert made == {
        "model": "demo",
        "messages": HI,
        "max_tokens": 20,
        "temperature": 1,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["END"],
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
    }
    assert "seed" not in chat(options={"seed": -1}).body
    assert chat(options={"num_predict": -2}).body["max_tokens"] == 2**31 - 1
    assert chat(options={"stop": "END"}).body["stop"] == ["END"]


@pytest.mark.parametrize(
    ("think", "wish"), [(True, True), (False, False), ("low", "low"), ("max", "high"), (None, None)]
)
def test_thinking(think: bool | str | None, wish: bool | str | None) -> None:
    assert chat(think=think).thinking == wish
    assert generate(think=think).thinking == wish


def test_formats() -> None:
    assert chat(format="json").body["response_format"] == {"type": "json_object"}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert generate(format=schema).body["response_format"]["json_schema"]["schema"] == schema
    assert "response_format" not in chat(format="").body


def test_a_turn_with_tools() -> None:
    turn = [
        *HI,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL, {**CALL, "id": "c1"}]},
        {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]
    made = chat(messages=turn, tools=[WEATHER])
    _, called, named, known = made.body["messages"]
    assert called["reasoning_content"] == "hm"
    assert [call["id"] for call in called["tool_calls"]] == ["", "c1"]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich"}
    assert named == {"role": "tool", "content": "sunny", "name": "get_weather"}
    assert known == {"role": "tool", "content": "sunny", "tool_call_id": "c1"}
    assert made.body["tools"] == [WEATHER]


@pytest.mark.parametrize(
    ("fields", "reason"), [({}, "load"), ({"keep_alive": "5m"}, "load"), ({"keep_alive": 0}, "unload")]
)
def test_a_request_without_prompt_loads_the_model(fields: dict[str, Any], reason: str) -> None:
    for route, empty in ((Chat(), {"messages": []}), (Generate(), {"prompt": ""}), (Embed(), {"input": []})):
        made = route.translate({"model": "demo", **empty, **fields}, {})
        assert (made.kind, made.body) == ("info", {"model": "demo"})
        answer = route.result({}, made.options, MODEL)
        assert answer["model"] == "demo"
        assert answer.get("done_reason", reason) == reason
    assert Chat().result({}, chat(messages=[]).options, MODEL)["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": ""}, "model", "at least 1 character"),
        (
            {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            "messages.0.images",
            "need a vision model",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages.0.tool_calls", "assistant"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'system'"),
        ({"options": {"temprature": 1}}, "options.temprature", "did you mean 'temperature'?"),
        ({"options": {"mirostat": 2}}, "options.mirostat", "there is no such sampling"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p", "there is no such sampling"),
        ({"options": {"top_k": "many"}}, "options.top_k", "valid integer"),
        ({"logprobs": True}, "logprobs", "'logprobs' is not supported"),
        ({"format": "xml"}, "format", "'json'"),
        ({"think": "very"}, "think", "'low'"),
        ({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}, "tools.0.type", "'function'"),
    ],
)
def test_what_can_t_be_served_is_refused_by_name(fields: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert message in caught.value.message
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suffix": "end"}, "'suffix' is not supported"),
        ({"template": "{{ .Prompt }}"}, "'template' is not supported"),
        ({"context": [1]}, "use /api/chat"),
        ({"images": ["aGk="]}, "need a vision model"),
        ({"raw": True, "system": "x"}, "no system prompt"),
        ({"width": 512}, "makes no images"),
    ],
)
def test_what_can_t_be_generated_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        generate(**fields)
    assert generate(suffix="", context=[], images=[], template=None).kind == "chat"


def test_embeddings() -> None:
    made = Embed().translate({"model": "demo", "input": ["a", "b"], "dimensions": 8, "truncate": True}, {})
    assert made.kind == "embed"
    expected = {"model": "demo", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8}
    assert made.body == expected
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    answer = Embed().result({"data": data, "usage": {"prompt_tokens": 4}}, made.options, MODEL)
    assert (answer["embeddings"], answer["prompt_eval_count"]) == ([[1.0], [2.0]], 4)
    one = Embeddings().translate({"model": "demo", "prompt": "a"}, {})
    assert one.body["input"] == "a"
    assert Embeddings().result({"data": data[:1]}, one.options, MODEL) == {"embedding": [2.0]}
    assert Embeddings().result({}, one.options, MODEL) == {"embedding": []}


def test_the_model_is_described() -> None:
    tags = Tags().result({}, {}, MODEL)["models"]
    assert [entry["name"] for entry in tags] == ["demo:latest", "demo-fr:latest"]
    assert tags[0]["details"] == {
        "parent_model": "",
        "format": "safetensors",
        "family": "qwen3",
        "families": ["qwen3"],
        "parameter_size": "7.6B",
        "quantization_level": "BF16",
    }
    assert len(tags[0]["digest"]) == 64
    assert datetime.fromisoformat(tags[0]["modified_at"]).timestamp() == MODEL.created
    running = Processes().result({}, {}, MODEL)["models"][0]
    assert (running["context_length"], running["size_vram"]) == (2048, 15)
    assert Show().translate({"name": "demo:latest"}, {}).body == {"model": "demo"}
    shown = Show().result({}, {}, MODEL)
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["template"] == "{{ messages }}"
    assert shown["model_info"]["qwen3.context_length"] == 2048
    assert shown["model_info"]["qwen3.embedding_length"] == 64
    assert Version().result({}, {}, MODEL)["llmk_version"] == "0.1.0"
    assert Root().result({}, {}, MODEL) == "Ollama is running"
    with pytest.raises(RequestError, match="model: Field required"):
        Show().translate({}, {})


OPTIONS = {"model": "demo:latest", "arrived": 0}
TEXTS = st.text("aé \n", max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """The deltas of a response with calls that overlap each other and anything else."""
    events: list[Event] = []
    left: list[int] = []
    for number, kind in enumerate(
        draw(st.lists(st.sampled_from(["text", "thought", "start", "end", "fail"]), max_size=16))
    ):
        if kind == "text":
            events.append(TextDelta(draw(TEXTS)))
        elif kind == "thought":
            events.append(ReasoningDelta(draw(TEXTS)))
        elif kind == "start":
            left.append(number)
            events += [ToolCallStart(number, "f"), ToolCallArguments(number, '{"a": ')]
        elif left:
            events += _ended(left.pop(draw(st.integers(0, len(left) - 1))), kind)
    events += [event for number in left for event in _ended(number, "fail")]
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    deltas = [Delta(events[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    deltas[-1].finish_reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return deltas


def _ended(number: int, kind: str) -> list[Event]:
    if kind == "fail":
        return [ToolCallFailed(number, f"<{number}>")]
    return [ToolCallArguments(number, f"{number}}}"), ToolCallEnd(number)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(answers())
def test_whole_is_the_fold_of_the_lines(deltas: list[Delta]) -> None:
    streaming, waiting = (Chat().open(AnswerHead("0" * 32, 1, "demo"), OPTIONS) for _ in range(2))
    lines = [frame.data for delta in deltas for frame in streaming.frames(delta, Counts())]
    (last,) = (frame.data for frame in streaming.last_frames(Counts()))
    for delta in deltas:
        waiting.add(delta, Counts())
    whole: Any = json.loads(json.dumps(waiting.whole(Counts())))
    assert not any(line["done"] for line in lines)
    messages = [line["message"] for line in (*lines, last)]
    for name in ("content", "thinking"):
        assert "".join(message.get(name, "") for message in messages) == whole["message"].get(name, "")
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert calls == whole["message"].get("tool_calls", [])
    assert [call["function"]["index"] for call in calls] == list(range(len(calls)))
    events = [event for delta in deltas for event in delta.events]
    assert len(calls) == sum(isinstance(event, ToolCallEnd) for event in events)
    said = "".join(event.text for event in events if isinstance(event, TextDelta | ToolCallFailed))
    assert whole["message"]["content"] == said
    for end in (last, whole):
        assert (end["done"], end["model"]) == (True, "demo:latest")
        assert end["done_reason"] == ("length" if deltas[-1].finish_reason == "length" else "stop")
        assert (end["prompt_eval_count"], end["eval_count"]) == (12, 5)
        assert end["total_duration"] >= end["prompt_eval_duration"] + end["eval_duration"] > 0


def test_generated_text_is_a_field_of_the_line() -> None:
    made = Generate().open(AnswerHead("0" * 32, 1, "demo"), OPTIONS)
    delta = Delta([ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("a")], "stop")
    lines = [frame.data for frame in (*made.frames(delta, Counts()), *made.last_frames(Counts()))]
    assert [(line["response"], line.get("thinking")) for line in lines] == [("", "hm"), ("a", None), ("", None)]
