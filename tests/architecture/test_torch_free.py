"""What needs no tensor needs no torch: importing the contracts, asking for help, listing plugins."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "triton")

STATEMENTS = [
    "import llmk",
    "import llmk.api",
    "import llmk.api.hooks",
    "import llmk.config",
    "import llmk.planning.boot",
    "import llmk.planning.report",
    "import llmk.engine.processes.engine_process, llmk.engine.async_llm",
    "import llmk.serve.lifecycle",
    "import llmk.reference.specs",
    "import llmk_models.specs",
    "import llmk_cpu.specs",
    "import llmk_cuda.specs",
    "import llmk_rocm.specs",
    "import llmk_xpu.specs",
    "import llmk_int8.specs",
    "import llmk_parsers.specs",
    "import llmk_anthropic.specs",
    "import llmk_bench.specs, llmk_bench.serve_command, llmk_bench.startup",
    "import llmk_embeddings.specs",
    "import llmk_ollama.specs",
    "import llmk_gguf.specs, llmk_gguf.reader",
    "import llmk_grammar.specs",
    "import llmk_hub.specs, llmk_hub.hub",
    "import llmk_policies.specs",
    "import llmk_quantization.specs",
    "import llmk_ray.specs",
    "import llmk_speculators.specs",
    "import llmk_statsd.specs",
    "import llmk_tpu.support, llmk_tpu.weights",
    "import llmk_triton.specs",
    "import llmk_web.specs",
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
