"""Environments of client libraries: each has the newest versions that the package index offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("LLMK_CLIENTS", ROOT / ".cache/clients"))
"""Where environments are kept between runs."""
FRESH = 24 * 3600.0
"""Seconds after which an environment is made anew from the newest versions."""
NODE_PACKAGES = ("openai", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod")


class Unavailable(Exception):
    """An environment can't be made here: the index can't be reached, or Node is missing."""


@dataclass(frozen=True)
class Client:
    """A suite: its file, and the packages that it needs. ``heavy``: they take minutes to install."""

    suite: str
    packages: tuple[str, ...]
    heavy: bool = False

    @property
    def name(self) -> str:
        """The client, with its language where it is not Python."""
        kind, file = self.suite.split("/")
        name = file.removeprefix("with_").partition(".")[0].replace("_", "-")
        return name if kind == "python" else f"{kind}-{name}"

    def command(self) -> list[str]:
        """The command that runs the suite, in an environment that is made where there is none.

        Raises :class:`Unavailable`.
        """
        if self.suite.startswith("node/"):
            return ["node", str(_node(self.packages) / Path(self.suite).name)]
        return [str(_python(self.name, self.packages)), str(HERE / self.suite)]


CLIENTS = (
    Client("python/with_openai.py", ("openai",)),
    Client("python/with_litellm.py", ("litellm", "mcp"), heavy=True),  # whose tool calls import mcp
    Client("python/with_langchain_openai.py", ("langchain-openai",)),
    Client("python/with_llama_index.py", ("llama-index-llms-openai-like",), heavy=True),
    Client("python/with_instructor.py", ("instructor",)),
    Client("python/with_pydantic_ai.py", ("pydantic-ai-slim[openai]",)),
    Client("python/with_openai_agents.py", ("openai-agents",)),
    Client("python/with_llm.py", ("llm",)),
    Client("python/with_lm_eval.py", ("lm-eval[api]",), heavy=True),
    Client("node/with_openai.mjs", NODE_PACKAGES),
    Client("node/with_ai.mjs", NODE_PACKAGES),
)


def _python(name: str, packages: tuple[str, ...]) -> Path:
    """The interpreter of a virtual environment with ``packages``."""
    folder = CACHE / name
    python = folder / "bin/python"
    if not _is_fresh(folder, packages):
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "-qq", "--no-compile", "--upgrade", *packages])
        _mark(folder, packages)
    return python


def _node(packages: tuple[str, ...]) -> Path:
    """A folder with ``packages`` and all of Node's suites, since modules are looked up from where a file is."""
    if shutil.which("npm") is None:
        raise Unavailable("npm is not installed")
    folder = CACHE / "node"
    folder.mkdir(parents=True, exist_ok=True)
    if not _is_fresh(folder, packages):
        newest = [f"{package}@latest" for package in packages]
        _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *newest])
        _mark(folder, packages)
    for suite in (HERE / "node").glob("*.mjs"):
        shutil.copy(suite, folder)
    return folder


def _is_fresh(folder: Path, packages: tuple[str, ...]) -> bool:
    """Whether ``folder`` has these packages, from less than a day ago."""
    made = folder / ".made"
    return made.exists() and made.read_text() == " ".join(packages) and time.time() - made.stat().st_mtime < FRESH


def _mark(folder: Path, packages: tuple[str, ...]) -> None:
    (folder / ".made").write_text(" ".join(packages))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:4])}… failed: {done.stderr.strip()[-500:]}")
