"""Coding agents work on their defaults, with the base URL changed, against a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import live
import pytest
from environments import Unavailable, node_folder
from scripted_model import Prompt, Turn, scripted_service

from llmk.serve.service import Service
from llmk.serve.workers.prepared_request import Refused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
ODD = 'print("Hällo \\"x\\"")\n'
HIDDEN = "A task of the agent's own: say what is in the folder."
CODEX = """\
model = "demo"
model_provider = "llmk"
web_search = "disabled"

[agents]
enabled = false

[model_providers.llmk]
name = "llmk"
base_url = "URL/v1"
wire_api = "responses"
"""
"""Codex offers by default what its maker's servers run, and functions in namespaces."""


@pytest.fixture
def installed(installs_all: bool) -> Callable[[str, str], str]:
    """Installs a package of Node's, and returns its command."""
    if not installs_all:
        pytest.skip("its package has hundreds of megabytes; --full runs it")

    def install(package: str, command: str) -> str:
        try:
            return str(node_folder((package,), command) / "node_modules/.bin" / command)
        except Unavailable as error:
            pytest.skip(str(error))

    return install


class Work:
    """An agent's work with a server. It gets nothing of this process's environment that could be an account's."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.folder, self.home = folder / "work", folder / "home"
        for each in (self.folder, self.home / ".codex"):
            each.mkdir(parents=True)
        self.refused: list[Any] = []
        self._service = service
        self._prepare = service.workers.prepare
        service.workers.prepare = self._watched  # type: ignore[method-assign]

    async def _watched(self, work: Any, body: bytes) -> Any:
        prepared = await self._prepare(work, body)
        self.refused.extend([prepared] if isinstance(prepared, Refused) else [])
        return prepared

    def run(self, *command: str, **environment: str) -> str:
        """What the agent writes. ``URL`` stands for the server's."""
        found: list[str] = []

        async def scenario(served: live.Live) -> None:
            host, port = served.address
            url = f"http://{host}:{port}"
            (self.home / ".codex/config.toml").write_text(CODEX.replace("URL", url))
            own = {name: value.replace("URL", url) for name, value in environment.items()}
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.home), **own},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
            )
            out, _ = await asyncio.wait_for(process.communicate(), 400)
            found.append(out.decode().strip())

        live.run(scenario, self._service, seconds=450)
        return found[0]

    def claude(self, command: str) -> Any:
        """How Claude Code ended its work."""
        own = {"ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        options = ("--output-format", "json", "--allowedTools", "Bash,Edit,Read,Write,ToolSearch,Agent")
        out = self.run(command, "-p", "Write a greeting.", *options, ANTHROPIC_BASE_URL="URL", **own)
        return json.loads(out.splitlines()[-1])


def test_claude_code_writes_edits_and_runs(installed: Callable[[str, str], str], tmp_path: Path) -> None:
    command = installed("@anthropic-ai/claude-code", "claude")
    prompts: list[Prompt] = []
    place = str(tmp_path / "work/hello.py")
    steps: list[tuple[str, dict[str, Any]]] = [
        ("Write", {"file_path": place, "content": ODD}),
        ("Read", {"file_path": place}),
        ("Edit", {"file_path": place, "old_string": "Hällo", "new_string": "Bye"}),
        ("Bash", {"command": "cat hello.py", "description": "Shows the file"}),
        ("Bash", {"command": "exit 3", "description": "Fails"}),
        ("ToolSearch", {"query": "select:NotebookEdit,WebFetch", "max_results": 5}),
        ("Agent", {"description": "Looks", "prompt": HIDDEN, "run_in_background": False}),
    ]
    turns = [Turn(f"Step {number}.", (step,), "I think of it.") for number, step in enumerate(steps)]

    def written(prompt: Prompt) -> Turn:
        prompts.append(prompt)
        if any(HIDDEN in text for text in prompt.texts("user")):
            return Turn("It has one file.")
        return [*turns, Turn("All is done.")][len(prompt.texts("tool"))]

    work = Work(tmp_path, scripted_service(written, "llmk_anthropic"))
    made = work.claude(command)
    assert not work.refused, "everything that it sends by default is taken"
    assert Path(place).read_text() == ODD.replace("Hällo", "Bye")
    assert (made["result"], made["is_error"], made["num_turns"]) == ("All is done.", False, len(turns) + 1), made
    assert not made["permission_denials"]
    assert made["usage"]["output_tokens_details"]["thinking_tokens"] >= len("I think of it.") * len(turns)
    parts = ("created", "Hällo", "updated", "Bye", "Exit code 3", "NotebookEdit", "It has one file.")
    for result, part in zip(prompts[-1].texts("tool"), parts, strict=True):
        assert part in result, result


def test_claude_code_shows_the_server_s_errors(installed: Callable[[str, str], str], tmp_path: Path) -> None:
    command = installed("@anthropic-ai/claude-code", "claude")
    service = scripted_service(lambda prompt: Turn("All is done."), "llmk_anthropic", max_model_len=2048)
    made = Work(tmp_path, service).claude(command)
    assert (made["is_error"], made["api_error_status"]) == (True, 400)
    assert "maximum context length is 2048 tokens" in made["result"]


def test_codex_runs_commands(installed: Callable[[str, str], str], tmp_path: Path) -> None:
    command = installed("@openai/codex", "codex")
    prompts: list[Prompt] = []
    lines = ("printf 'Hällo \"x\"\\n' > hello.txt", "cat hello.txt", "exit 3")

    def written(prompt: Prompt) -> Turn:
        prompts.append(prompt)
        at = len(prompt.texts("tool"))
        if at == len(lines):
            return Turn("All is done.")
        return Turn(f"Step {at}.", (("exec_command", {"cmd": lines[at]}),), "I think of it.")

    work = Work(tmp_path, scripted_service(written))
    options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    out = work.run(command, "exec", *options, "Write a greeting.", OPENAI_API_KEY="none")
    assert not work.refused, work.refused
    assert (work.folder / "hello.txt").read_text() == 'Hällo "x"\n'
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    said = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert said == ["Step 0.", "Step 1.", "Step 2.", "All is done."]
    results = prompts[-1].texts("tool")
    assert 'Hällo "x"' in results[1]
    assert "exited with code 3" in results[2]
