"""The official ``ollama`` client."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any, Literal

import ollama
import pydantic
from suite import HELLO, MODEL, PICK, PICK_TOOL, ROOT, SUM, WEATHER, check_pick, refused, run

client: Any = ollama.Client(host=ROOT)
COLD: Any = {"model": MODEL, "options": {"temperature": 0}, "think": False}


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def get_weather(city: str) -> str:
    """
    Tells the current weather of a city.

    Args:
        city: The city
    """
    return f"sunny, 21 °C in {city}"


def check_chat() -> None:
    assert client.chat(model=MODEL, messages=said(HELLO)).message.content
    answer = client.chat(**{**COLD, "model": f"{MODEL}:latest"}, messages=said(HELLO))
    assert "llmk" in answer.message.content.lower()
    assert answer.message.thinking is None
    assert (answer.model, answer.done, answer.done_reason) == (f"{MODEL}:latest", True, "stop")
    assert answer.eval_count > 3
    assert answer.prompt_eval_count > 3
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0


def check_stream_is_the_whole_answer() -> None:
    whole = client.chat(**COLD, messages=said(HELLO))
    parts = list(client.chat(**COLD, messages=said(HELLO), stream=True))
    assert len(parts) > 5
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count


def check_async() -> None:
    async def main() -> list[str | None]:
        several = ollama.AsyncClient(host=ROOT)
        answers = await asyncio.gather(*(several.chat(**COLD, messages=said(HELLO)) for _ in range(8)))
        parts = [
            part.message.content or "" async for part in await several.chat(**COLD, messages=said(HELLO), stream=True)
        ]
        return [*(answer.message.content for answer in answers), "".join(parts)]

    assert len(set(asyncio.run(main()))) == 1


def check_thinking() -> None:
    options: Any = {**COLD, "messages": said(SUM), "think": True}
    on = client.chat(**options)
    assert on.message.thinking
    assert "42" in on.message.content
    parts = list(client.chat(**options, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == on.message.thinking
    assert client.chat(**{**options, "think": False}).message.thinking is None
    made = client.generate(**{**COLD, "think": True}, prompt=SUM)
    assert (made.thinking, made.response) == (on.message.thinking, on.message.content)
    more = [*said(SUM), on.message, *said("And 1 + 1?")]
    assert client.chat(**{**options, "messages": more}).message.content
    for level in ("low", "medium", "high"):
        assert client.chat(**{**options, "think": level}).message.thinking


def check_tool_loop() -> None:
    options: Any = {**COLD, "tools": [get_weather]}
    for stream in (False, True):
        made: Any = client.chat(**options, messages=said(WEATHER), stream=stream)
        calls = [call for part in (made if stream else [made]) for call in part.message.tool_calls or ()]
        (call,) = calls
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
        result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")}
        turn = [*said(WEATHER), {"role": "assistant", "tool_calls": calls}, result]
        assert "21" in client.chat(**options, messages=turn).message.content


def check_structured_output() -> None:
    """Ollama's API has no way to require a tool: an answer in the form of one is what is left."""
    for form in (Pick.model_json_schema(), PICK, PICK_TOOL["function"]["parameters"]):
        check_pick(client.chat(**COLD, messages=said(HELLO), format=form).message.content)
        check_pick(client.generate(**COLD, prompt=HELLO, format=form).response)
    parts = client.chat(**COLD, messages=said(HELLO), format=PICK, stream=True)
    check_pick("".join(part.message.content or "" for part in parts))
    short = {**COLD, "options": {"temperature": 0, "num_predict": 4}}  # what it writes without a schema may be endless
    assert client.chat(**short, messages=said(HELLO), format="json").message.content.lstrip().startswith("{")


def check_generate() -> None:
    text = client.chat(**COLD, messages=said(HELLO)).message.content
    assert client.generate(**COLD, prompt=HELLO).response == text
    assert "".join(part.response or "" for part in client.generate(**COLD, prompt=HELLO, stream=True)) == text
    limited = {"temperature": 0, "num_predict": 3, "num_ctx": 4096}
    raw = client.generate(model=MODEL, prompt="Once upon", raw=True, options=limited)
    assert (raw.eval_count, raw.done_reason) == (3, "length")
    until = {"temperature": 0, "stop": ["llmk"]}
    stopped = client.generate(model=MODEL, prompt=HELLO, think=False, options=until)
    assert stopped.response == text.split("llmk")[0]
    assert client.generate(model=MODEL).done_reason == "load"
    assert client.generate(model=MODEL, keep_alive=0).done_reason == "unload"
    assert client.chat(model=MODEL).done_reason == "load"
    to_the_end = client.generate(model=MODEL, prompt="Once upon", raw=True, options={"temperature": 0})
    assert to_the_end.eval_count > 16


def check_embeddings() -> None:
    several = client.embed(model=MODEL, input=["One text", "Another"])
    assert len(several.embeddings) == 2
    assert several.prompt_eval_count > 2
    (alone,) = client.embed(model=MODEL, input="One text").embeddings
    assert max(abs(a - b) for a, b in zip(alone, several.embeddings[0], strict=True)) < 2e-3
    assert len(client.embed(model=MODEL, input="One text", dimensions=16).embeddings[0]) == 16
    old = client.embeddings(model=MODEL, prompt="One text").embedding
    assert max(abs(a - b) for a, b in zip(alone, old, strict=True)) < 2e-3
    assert len(client.embed(model=MODEL, input=[]).embeddings) == 0


def check_the_model_is_described() -> None:
    (listed,) = client.list().models
    assert listed.model == f"{MODEL}:latest"
    assert listed.size
    shown = client.show(MODEL)
    assert shown.template
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities or ())
    assert shown.details.family
    assert any(name.endswith(".context_length") for name in shown.modelinfo)
    assert client.pull(MODEL).status == "success"
    assert [step.status for step in client.pull(MODEL, stream=True)] == ["success"]
    (running,) = client.ps().models
    assert running.context_length
    with urllib.request.urlopen(f"{ROOT}/api/version", timeout=9) as answer:
        assert json.load(answer)["version"]
    with urllib.request.urlopen(ROOT, timeout=9) as answer:
        assert answer.read() == b"Ollama is running"
    with urllib.request.urlopen(urllib.request.Request(ROOT, method="HEAD"), timeout=9) as answer:
        assert answer.status == 200


def check_errors() -> None:
    image = {"role": "user", "content": "x", "images": ["aGk="]}
    for status, why, call in (
        (404, "is not served here", lambda: client.chat(model="llama3", messages=said(HELLO))),
        (404, "is not served here", lambda: client.show("llama3")),
        (404, "is not served here", lambda: list(client.pull("llama3", stream=True))),
        (404, "is not served here", lambda: client.embed(model="llama3", input="x")),
        (400, "vision model", lambda: client.chat(model=MODEL, messages=[image])),
        (400, "temperature", lambda: list(client.generate(MODEL, "x", options={"temperature": -1}, stream=True))),
        (400, "context", lambda: client.generate(model=MODEL, prompt="a b c " * 20_000)),
    ):
        error: Any = refused(call, ollama.ResponseError)
        assert error.status_code == status
        assert why in error.error


if __name__ == "__main__":
    run(globals(), "ollama")
