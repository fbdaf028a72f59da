"""``llm``, the command, with the model in its file of OpenAI-compatible ones."""

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

from suite import HELLO, KEY, MODEL, PICK, URL, WEATHER, check_pick, run  # noqa: E402

ABLE = {"supports_tools": True, "supports_schema": True, "can_stream": True}
(HOME / "extra-openai-models.yaml").write_text(
    json.dumps([{"model_id": "served", "model_name": MODEL, "api_base": URL, "api_key_name": "served", **ABLE}])
)
(HOME / "keys.json").write_text(json.dumps({"served": KEY}))
TOOL = 'def get_weather(city: str) -> str:\n    "Tells the current weather of a city."\n    return "21 degrees"\n'


def command(*arguments: str, fails: bool = False) -> str:
    line = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def check_chat_and_stream() -> None:
    options = ("-m", "served", "-o", "temperature", "0", HELLO)
    assert command("--no-stream", *options).strip() == command(*options).strip() != ""
    assert command("-c", "-m", "served", "-o", "max_tokens", "8", "And who made you?")
    assert command("-m", "served", "-s", "Be brief.", "-u", "-o", "max_tokens", "8", HELLO)


def check_structured_output() -> None:
    for stream in ((), ("--no-stream",)):
        check_pick(command("-m", "served", "--schema", json.dumps(PICK), *stream, HELLO))


def check_tool_loop() -> None:
    for stream in ((), ("--no-stream",)):
        said = command("-m", "served", "--functions", TOOL, "-o", "temperature", "0", *stream, WEATHER)
        assert said.strip()


def check_from_python() -> None:
    import llm

    model: Any = llm.get_model("served")
    answer = model.prompt(HELLO, stream=False)
    assert answer.text()
    assert answer.usage().input > 0
    called: list[str] = []

    def get_weather(city: str) -> str:
        """Tells the current weather of a city."""
        called.append(city)
        return "21 degrees"

    assert model.chain(WEATHER, tools=[get_weather], options={"temperature": 0}).text()
    assert called == ["Paris"]
    talk = model.conversation()
    assert talk.prompt(HELLO).text()
    assert talk.prompt("And who made you?").text()


def check_errors() -> None:
    assert "maximum context length" in command("-m", "served", "word " * 9000, fails=True)


if __name__ == "__main__":
    run(globals(), "llm", "openai")
