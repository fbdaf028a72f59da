"""``llm``, the command, with the model in its file of OpenAI-compatible ones: by chat completions and by Responses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HOME = Path(tempfile.mkdtemp())
os.environ["LLM_USER_PATH"] = str(HOME)

from suite import EMBEDDER, EMBEDDER_KEY, HELLO, KEY, MODEL, PICK, SUM, URL, WEATHER, check_pick, run  # noqa: E402

ABLE = {"supports_tools": True, "supports_schema": True, "can_stream": True}
(HOME / "extra-openai-models.yaml").write_text(
    json.dumps(
        [
            {"model_id": "served", "model_name": MODEL, "api_base": URL, "api_key_name": "served", **ABLE},
            {"model_id": "kept", "model_name": MODEL, "api_base": URL, "responses": True, "reasoning": True, **ABLE},
        ]
    )
)
(HOME / "keys.json").write_text(json.dumps({"served": KEY}))
MODELS = ("served", "kept")
TOOL = 'def get_weather(city: str) -> str:\n    "Tells the current weather of a city."\n    return "21 degrees"\n'


def command(*arguments: str, fails: bool = False) -> str:
    line = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def check_chat_and_stream() -> None:
    for model in MODELS:
        options = ("-m", model, "-o", "temperature", "0", HELLO)
        assert command("--no-stream", *options).strip() == command(*options).strip() != ""
        short = ("-o", "max_tokens", "16")
        assert command("-c", "-m", model, *short, "And who made you?") is not None
        assert command("-m", model, "-s", "Be brief.", "-u", *short, HELLO) is not None


def check_structured_output() -> None:
    for model in MODELS:
        for stream in ((), ("--no-stream",)):
            check_pick(command("-m", model, "--schema", json.dumps(PICK), *stream, HELLO))


def check_tool_loop() -> None:
    for model in MODELS:
        for stream in ((), ("--no-stream",)):
            options = ("-m", model, "--functions", TOOL, "-o", "temperature", "0", "--td", *stream, WEATHER)
            assert command(*options).strip()


def check_thinking() -> None:
    said = command("-m", "kept", "-o", "reasoning_effort", "low", "-o", "temperature", "0", SUM)
    assert said.strip()
    assert "<think>" not in said
    assert command("-c", "-m", "kept", "-o", "max_tokens", "16", "And 1 + 1?") is not None


def check_from_python() -> None:
    import llm

    for name in MODELS:
        model: Any = llm.get_model(name)
        answer = model.prompt(HELLO, stream=False)
        assert answer.text()
        assert answer.usage().input > 0
        called: list[str] = []

        def get_weather(city: str, called: list[str] = called) -> str:
            """Tells the current weather of a city."""
            called.append(city)
            return "21 degrees"

        assert model.chain(WEATHER, tools=[get_weather], options={"temperature": 0}).text()
        assert called == ["Paris"]
        talk = model.conversation()
        assert talk.prompt(HELLO).text()
        assert talk.prompt("And who made you?").text()


def check_embeddings() -> None:
    """Its embedding models have OpenAI's names, so that one must be the name of the served model."""
    if not EMBEDDER:
        return
    os.environ |= {"OPENAI_BASE_URL": f"{EMBEDDER}/v1", "OPENAI_API_KEY": EMBEDDER_KEY}
    made = json.loads(command("embed", "-m", "3-small", "-c", "One text"))
    assert len(made) > 16
    again = json.loads(command("embed", "-m", "3-small", "-c", "One text", "-f", "json"))
    assert max(abs(a - b) for a, b in zip(made, again, strict=True)) < 2e-3


def check_errors() -> None:
    for model in MODELS:
        assert "maximum context length" in command("-m", model, "word " * 9000, fails=True)


if __name__ == "__main__":
    run(globals(), "llm", "openai")
