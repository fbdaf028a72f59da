"""Environments of client libraries: each has the newest versions that the package index offers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("LLMK_CLIENTS", ROOT / ".cache/clients"))
"""Where environments are kept between runs."""
FRESH = 24 * 3600.0
"""Seconds after which an environment is made anew from the newest versions."""
LONGEST_INSTALL = 1800.0
"""Seconds after which the installation of an environment is given up."""
NODE_PACKAGES = (
    *("openai", "zod", "@anthropic-ai/sdk", "ollama"),
    *("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"),
)


class Unavailable(Exception):
    """An environment can't be made here: the index can't be reached, or Node is missing."""


@dataclass(frozen=True)
class Client:
    """A suite: its file, and the packages that it needs; those of Node share theirs. ``heavy``: they take minutes to
    install."""

    suite: str
    packages: tuple[str, ...] = ()
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
            return ["node", str(_node_suites() / Path(self.suite).name)]
        return [str(_python(self.packages)), str(HERE / self.suite)]


LLAMA_INDEX_PACKAGES = ("llama-index-llms-openai-like", "llama-index-embeddings-openai-like")
CLIENTS = (
    Client("python/with_openai.py", ("openai",)),
    Client("python/with_openai_responses.py", ("openai",)),
    Client("python/with_anthropic.py", ("anthropic",)),
    Client("python/with_ollama.py", ("ollama",)),
    Client("python/with_litellm.py", ("litellm", "mcp"), heavy=True),  # whose tool calls import mcp
    Client("python/with_langchain_openai.py", ("langchain-openai",)),
    Client("python/with_llama_index.py", LLAMA_INDEX_PACKAGES, heavy=True),
    Client("python/with_instructor.py", ("instructor",)),
    Client("python/with_pydantic_ai.py", ("pydantic-ai-slim[openai,anthropic]",)),
    Client("python/with_openai_agents.py", ("openai-agents",)),
    Client("python/with_llm.py", ("llm",)),
    Client("python/with_lm_eval.py", ("lm-eval[api]",), heavy=True),
    Client("node/with_openai.mjs"),
    Client("node/with_openai_responses.mjs"),
    Client("node/with_anthropic.mjs"),
    Client("node/with_ollama.mjs"),
    Client("node/with_ai.mjs"),
)


def _python(packages: tuple[str, ...]) -> Path:
    """The interpreter of a virtual environment with ``packages``, which is named by the first of them."""
    folder = CACHE / packages[0].partition("[")[0]
    python = folder / "bin/python"
    with _being_made(folder, packages) as is_stale:
        if is_stale:
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(python), "-m", "pip", "install", "-qq", "--no-compile", "--upgrade", *packages])
    return python


def node_folder(packages: tuple[str, ...], name: str = "node") -> Path:
    """A folder with ``packages``. Raises :class:`Unavailable`."""
    if shutil.which("npm") is None:
        raise Unavailable("npm is not installed")
    folder = CACHE / name
    with _being_made(folder, packages) as is_stale:
        if is_stale:
            newest = [f"{package}@latest" for package in packages]
            _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *newest])
    return folder


def _node_suites() -> Path:
    """A folder with all of Node's suites and their packages, since modules are looked up from where a file is."""
    folder = node_folder(NODE_PACKAGES)
    for suite in (HERE / "node").glob("*.mjs"):
        shutil.copy(suite, folder)
    return folder


@contextmanager
def _being_made(folder: Path, packages: tuple[str, ...]) -> Iterator[bool]:
    """Whether ``folder`` lacks these packages, or has them for more than a day: then the caller installs them, one
    process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / ".made"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_known = made.exists() and made.read_text() == " ".join(packages)
        is_stale = not is_known or time.time() - made.stat().st_mtime > FRESH
        yield is_stale
        if is_stale:
            made.write_text(" ".join(packages))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_INSTALL)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:4])}… took more than {LONGEST_INSTALL:.0f} seconds") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:4])}… failed: {done.stderr.strip()[-500:]}")
