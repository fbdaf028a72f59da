"""The official ``ollama`` client against ``llmk serve`` with the demo model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import ollama
import pydantic
import pytest
from served import Served

pytestmark = pytest.mark.slow

HELLO: Any = [{"role": "user", "content": "Hello! Who are you?"}]
SUM: Any = [{"role": "user", "content": "What is 17 + 25?"}]
PARIS: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY: Any = {"options": {"temperature": 0}, "think": False}


def get_weather(city: str) -> str:
    """
    Tells the current weather of a city.

    Args:
        city: The city
    """
    return f"sunny, 21 °C in {city}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("ollama") / "log", "--port", "0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> ollama.Client:
    return ollama.Client(host=served.url, timeout=60)


@pytest.fixture
def model(served: Served) -> str:
    return str(served.model)


def test_chat(client: Any, model: str) -> None:
    answer = client.chat(model=f"{model}:latest", messages=HELLO, **GREEDY)
    assert "llmk" in (answer.message.content or "").lower()
    assert answer.message.thinking is None
    assert (answer.model, answer.done, answer.done_reason) == (f"{model}:latest", True, "stop")
    assert answer.eval_count > 3
    assert answer.prompt_eval_count > 3
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0


def test_streaming_says_the_same(client: Any, model: str) -> None:
    whole = client.chat(model=model, messages=HELLO, **GREEDY)
    parts = list(client.chat(model=model, messages=HELLO, stream=True, **GREEDY))
    assert len(parts) > 5
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count


def test_thinking(client: Any, model: str) -> None:
    options: Any = {"model": model, "messages": SUM, "options": {"temperature": 0}}
    on = client.chat(think=True, **options)
    assert on.message.thinking
    assert "42" in (on.message.content or "")
    parts = list(client.chat(think=True, stream=True, **options))
    assert "".join(part.message.thinking or "" for part in parts) == on.message.thinking
    assert client.chat(think=False, **options).message.thinking is None
    generated = client.generate(model=model, prompt="What is 17 + 25?", think=True, options={"temperature": 0})
    assert generated.thinking == on.message.thinking
    assert generated.response == on.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_used(client: Any, model: str, stream: bool) -> None:
    options: Any = {"model": model, "tools": [get_weather], **GREEDY}
    answers: Any = client.chat(messages=PARIS, stream=stream, **options)
    calls = [call for answer in (answers if stream else [answers]) for call in answer.message.tool_calls or ()]
    (call,) = calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")}
    last = client.chat(messages=[*PARIS, {"role": "assistant", "tool_calls": calls}, result], **options)
    assert "21" in (last.message.content or "")


def test_generate(client: Any, model: str) -> None:
    said = client.chat(model=model, messages=HELLO, **GREEDY).message.content
    assert client.generate(model=model, prompt=HELLO[0]["content"], **GREEDY).response == said
    parts = list(client.generate(model=model, prompt=HELLO[0]["content"], stream=True, **GREEDY))
    assert "".join(part.response or "" for part in parts) == said
    limited = {"temperature": 0, "num_predict": 3, "num_ctx": 4096}
    raw = client.generate(model=model, prompt="Once upon", raw=True, options=limited)
    assert (raw.eval_count, raw.done_reason) == (3, "length")
    until = {"temperature": 0, "stop": ["llmk"]}
    stopped = client.generate(model=model, prompt=HELLO[0]["content"], think=False, options=until)
    assert stopped.response == said.split("llmk")[0]
    assert client.generate(model=model).done_reason == "load"
    assert client.generate(model=model, keep_alive=0).done_reason == "unload"
    assert client.chat(model=model).done_reason == "load"


def test_a_prompt_as_it_is_is_completed_up_to_the_end(client: Any, model: str) -> None:
    answer = client.generate(model=model, prompt="Once upon", raw=True, options={"temperature": 0})
    assert answer.eval_count > 16


def test_the_model_is_described(client: Any, served: Served, model: str) -> None:
    (listed,) = client.list().models
    assert listed.model == f"{model}:latest"
    assert listed.size
    shown = client.show(model)
    assert shown.template
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities or ())
    assert shown.details
    assert shown.details.family
    assert shown.modelinfo
    assert any(name.endswith(".context_length") for name in shown.modelinfo)
    (running,) = client.ps().models
    assert running.context_length
    status, body = served.get("/api/version")
    assert status == 200
    assert json.loads(body)["version"]
    assert served.get("/") == (200, "Ollama is running")
    with urllib.request.urlopen(urllib.request.Request(served.url + "/", method="HEAD"), timeout=9) as answer:
        assert answer.status == 200


def test_errors_are_the_client_s_own(client: Any, model: str) -> None:
    with pytest.raises(ollama.ResponseError, match="is not served here") as caught:
        client.chat(model="llama3", messages=HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="is not served here") as caught:
        client.show("llama3")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="vision model"):
        client.chat(model=model, messages=[{"role": "user", "content": "x", "images": ["aGk="]}])
    with pytest.raises(ollama.ResponseError, match="temperature"):
        list(client.generate(model=model, prompt="x", options={"temperature": -1}, stream=True))
    with pytest.raises(ollama.ResponseError, match="context"):
        client.generate(model=model, prompt="a b c " * 20_000)


def test_many_at_once(served: Served, model: str) -> None:
    async def ask() -> list[str | None]:
        client = ollama.AsyncClient(host=served.url, timeout=60)
        answers = await asyncio.gather(*(client.chat(model=model, messages=HELLO, **GREEDY) for _ in range(8)))
        return [answer.message.content for answer in answers]

    assert len(set(asyncio.run(ask()))) == 1


class City(pydantic.BaseModel):
    city: str
    warm: bool


def test_formats(client: Any, model: str) -> None:
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "Is it warm in Paris?"}], **GREEDY}
    City.model_validate_json(client.chat(format=City.model_json_schema(), **asked).message.content or "")
    assert isinstance(json.loads(client.chat(format="json", **asked).message.content or ""), dict)
