"""A coding agent that speaks Anthropic's API works on its defaults, with nothing but the base URL changed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import live
import pytest
from environments import Unavailable, node_folder
from scripted_model import Prompt, Turn, scripted_service

from llmk.serve.service import Service
from llmk.serve.workers.prepared_request import Refused

PACKAGES = ("@anthropic-ai/claude-code",)
TOOLS = "Bash,Edit,Read,Write"
ODD = 'print("Hällo \\"x\\"")\n'
HIDDEN = "A task of the agent's own: say what is in the folder."


def _script(folder: Path) -> list[Turn]:
    place = str(folder / "hello.py")
    steps: list[tuple[str, dict[str, Any]]] = [
        ("Write", {"file_path": place, "content": ODD}),
        ("Read", {"file_path": place}),
        ("Edit", {"file_path": place, "old_string": "Hällo", "new_string": "Bye"}),
        ("Bash", {"command": "cat hello.py", "description": "Shows the file"}),
        ("Bash", {"command": "exit 3", "description": "Fails"}),
        ("ToolSearch", {"query": "select:NotebookEdit,WebFetch", "max_results": 5}),
        ("Agent", {"description": "Looks", "prompt": HIDDEN, "run_in_background": False}),
    ]
    turns = (Turn(f"Step {number}.", (step,), "I think of it.") for number, step in enumerate(steps))
    return [*turns, Turn("All is done.")]


@pytest.fixture
def agent(installs_all: bool) -> Path:
    """The agent's command."""
    if not installs_all:
        pytest.skip("its package has hundreds of megabytes; --full runs it")
    try:
        return node_folder(PACKAGES, "coding-agent") / "node_modules/.bin/claude"
    except Unavailable as error:
        pytest.skip(str(error))


async def _run(agent: Path, folder: Path, url: str) -> str:
    """What the agent writes. It gets nothing of this process's environment that could be an account's."""
    home = folder.parent / "home"
    for each in (folder, home):
        each.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_BASE_URL": url}
    environment |= {"ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    options = ("--output-format", "json", "--allowedTools", f"{TOOLS},ToolSearch,Agent")
    process = await asyncio.create_subprocess_exec(
        *(str(agent), "-p", "Write a greeting.", *options),
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    return out.decode()


def ended(agent: Path, service: Service, folder: Path) -> Any:
    """How the agent's work with a server ended."""
    found: list[str] = []

    async def scenario(served: live.Live) -> None:
        host, port = served.address
        found.append(await _run(agent, folder, f"http://{host}:{port}"))

    live.run(scenario, service, seconds=150)
    return json.loads(found[0].strip().splitlines()[-1])


def refusals(service: Service) -> list[Any]:
    """The responses that refuse requests of a server, as they are made."""
    found: list[Any] = []
    prepare = service.workers.prepare

    async def watched(work: Any, body: bytes) -> Any:
        prepared = await prepare(work, body)
        found.extend([prepared] if isinstance(prepared, Refused) else [])
        return prepared

    service.workers.prepare = watched  # type: ignore[method-assign]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_coding_agent_writes_edits_and_runs(agent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    script, prompts = _script(folder), list[Prompt]()

    def written(prompt: Prompt) -> Turn:
        prompts.append(prompt)
        if any(HIDDEN in text for text in prompt.texts("user")):
            return Turn("It has one file.")
        return script[len(prompt.texts("tool"))]

    service = scripted_service(written, "llmk_anthropic")
    refused = refusals(service)
    made = ended(agent, service, folder)
    assert not refused, "everything that it sends by default is taken"
    assert (folder / "hello.py").read_text() == ODD.replace("Hällo", "Bye")
    assert (made["result"], made["is_error"], made["num_turns"]) == ("All is done.", False, len(script)), made
    assert not made["permission_denials"]
    assert made["usage"]["output_tokens_details"]["thinking_tokens"] >= len("I think of it.") * (len(script) - 1)
    results = prompts[-1].texts("tool")
    parts = ("created", "Hällo", "updated", "Bye", "Exit code 3", "NotebookEdit", "It has one file.")
    for result, part in zip(results, parts, strict=True):
        assert part in result, result


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_coding_agent_shows_the_server_s_errors(agent: Path, tmp_path: Path) -> None:
    service = scripted_service(lambda prompt: Turn("All is done."), "llmk_anthropic", max_model_len=2048)
    made = ended(agent, service, tmp_path / "work")
    assert (made["is_error"], made["api_error_status"]) == (True, 400)
    assert "maximum context length is 2048 tokens" in made["result"]
