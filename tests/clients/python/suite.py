"""What the suites of all Python clients have in common. Runs in the client's environment, with nothing of llmk's."""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

ROOT = os.environ.get("LLMK_URL", "http://127.0.0.1:8000")
URL = f"{ROOT}/v1"
MODEL = os.environ.get("LLMK_MODEL", "demo")
EMBEDDER = os.environ.get("LLMK_EMBEDDER_URL", "")
EMBEDDER_KEY = os.environ.get("LLMK_EMBEDDER_KEY", "")
"""A server with an API key, of an embedding model named ``text-embedding-3-small``, for clients that know only such
names."""
KEY = "none"

HELLO = "Hello! Who are you?"
SUM = "What is 17 + 25?"
WEATHER = "What is the weather in Paris?"
QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""Fields of a request that turn thinking off."""

PICK: dict[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": [1, 2, 3]}, "sure": {"type": "boolean"}},
    "required": ["number", "sure"],
    "additionalProperties": False,
}
"""A schema that a small model fills with few tokens."""
PICK_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "pick", "description": "Picks a number.", "parameters": PICK},
}
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


def check_pick(picked: Any) -> None:
    """Fails unless ``picked``, or the JSON text that it is, matches :data:`PICK`."""
    value = json.loads(picked) if isinstance(picked, str) else picked
    assert value.keys() == {"number", "sure"}, value
    assert value["number"] in (1, 2, 3), value
    assert isinstance(value["sure"], bool), value


def check_usage(prompt: Any, completion: Any, total: Any) -> None:
    """Fails unless the counts are positive and add up."""
    assert prompt > 0, prompt
    assert completion > 0, completion
    assert total == prompt + completion, (prompt, completion, total)


def refused(call: Callable[[], Any], *kinds: type[BaseException]) -> BaseException:
    """The exception of one of ``kinds`` that ``call`` raises. Fails if it raises none."""
    try:
        answer = call()
    except kinds as error:
        return error
    raise AssertionError(f"no error, but {answer!r}")


def run(cases: dict[str, Any], *distributions: str) -> None:
    """Runs every function of ``cases``, a module's names, whose name starts with ``check_``, and prints the outcomes
    as JSON: of each case ``null``, or what failed."""
    wanted = sys.argv[1:]
    outcomes: dict[str, str | None] = {}
    for name, case in list(cases.items()):
        if not name.startswith("check_") or not inspect.isfunction(case) or case.__module__ != cases["__name__"]:
            continue
        label = name.removeprefix("check_")
        if wanted and label not in wanted:
            continue
        try:
            case()
            outcomes[label] = None
        except BaseException:
            outcomes[label] = traceback.format_exc()[-4000:]
    versions = {name: version(name) for name in distributions}
    print("\n" + json.dumps({"versions": versions, "outcomes": outcomes}), flush=True)
    os._exit(0)  # some clients keep threads
