"""Conversations of agent frameworks end with llmk as they do with a scripted reference server."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import live
import pytest
from agent_scripts import CALLS, turn_of
from environments import CLIENTS, Unavailable
from reference_server import reference_server
from scripted_model import Prompt, Turn, scripted_service

PYTHON = Path(__file__).parent / "python"


async def _run(command: list[str], url: str) -> Any:
    environment = {**os.environ, "LLMK_URL": url, "LLMK_MODEL": "demo"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    out, errors = await asyncio.wait_for(process.communicate(), 400)
    assert process.returncode == 0, errors.decode()[-4000:]
    return json.loads(out.decode().strip().splitlines()[-1])


def _written(prompt: Prompt) -> Turn:
    conversation = prompt.texts("user")[0].partition("conversation ")[2][0]
    return turn_of(int(conversation), len(prompt.texts("tool")))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "file", "api"),
    [
        ("pydantic-ai", "agent_runs.py", "chat"),
        ("pydantic-ai", "agent_runs.py", "responses"),
        ("pydantic-ai", "agent_runs.py", "anthropic"),
        ("openai-agents", "openai_agents_runs.py", "responses"),
        ("openai-agents", "openai_agents_runs.py", "stored"),
    ],
)
def test_conversations_end_as_with_the_reference(name: str, file: str, api: str) -> None:
    client = next(client for client in CLIENTS if client.name == name)
    try:
        command = [client.command()[0], str(PYTHON / file), api]
    except Unavailable as error:
        pytest.skip(str(error))
    with reference_server() as url:
        # What the server keeps is another way to send the same conversation: it ends as that without it.
        expected = asyncio.run(_run([*command[:2], "responses"] if api == "stored" else command, url))
    assert [sum(event[0] == "call" for event in found["events"]) for found in expected] == [CALLS] * 3
    assert {found["output"] for found in expected} == {"All is done."}
    found: list[Any] = []

    async def scenario(served: live.Live) -> None:
        host, port = served.address
        found.append(await _run(command, f"http://{host}:{port}"))

    live.run(scenario, scripted_service(_written, "llmk_anthropic"), seconds=450)
    for ours, theirs in zip(found[0], expected, strict=True):
        for event, wanted in zip(ours["events"], theirs["events"], strict=True):
            assert event == wanted
        assert ours == theirs
