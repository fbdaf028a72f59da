"""What needs no tensor needs no torch: importing the contracts, asking for help, listing plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LLMK = Path(sys.executable).with_name("llmk")
HEAVY = ("torch", "transformers")

STATEMENTS = [
    "import llmk",
    "import llmk.api",
    "import llmk.api.hooks",
    "import llmk.config",
    "import llmk.kernel.boot",
    "import llmk.kernel.report",
    "import llmk.reference.specs",
    "import llmk_models.specs",
    "import llmk_cpu.specs",
    "import llmk_parsers.specs",
]

COMMANDS = ["--help", "plugins", "plugins --json", "explain", "explain --json", "config show --origin"]

RUN_COMMAND = """
import sys
from llmk.cli.main import main
try:
    code = main({args!r})
except SystemExit as stop:
    code = stop.code
assert not code, f"exit code {{code}}"
"""

WATCH = """
import sys
heavy = [name for name in {heavy!r} if name in sys.modules]
assert not heavy, f"imported {{heavy}}"
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_import(statement: str) -> None:
    done = run(statement + WATCH.format(heavy=HEAVY))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str) -> None:
    done = run(RUN_COMMAND.format(args=command.split()) + WATCH.format(heavy=HEAVY))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_watch_sees() -> None:
    assert run("import torch" + WATCH.format(heavy=HEAVY)).returncode != 0


@pytest.mark.parametrize(("command", "seconds"), [("--help", 0.3), ("plugins", 0.5)])
def test_command_is_quick(command: str, seconds: float) -> None:
    """Processor time of the best of five runs: what the command itself costs, however busy the machine is."""
    assert min(cpu_seconds([str(LLMK), *command.split()]) for _ in range(5)) < seconds


def cpu_seconds(command: list[str]) -> float:
    """User and system time of a process that must succeed."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime
