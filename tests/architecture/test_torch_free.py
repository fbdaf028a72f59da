"""What needs no tensor needs no torch: importing the contracts, asking for help, listing plugins."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "triton")
NOT_OF_SERVERS = (*HEAVY, "numpy", "llguidance", "llmk.nn", "llmk.reference.attention", "llmk.engine.core")
NOT_OF_ENGINES = (
    *("fastapi", "starlette", "uvicorn", "jinja2", "tokenizers", "transformers", "llmk.serve"),
    *("torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "llguidance", "llmk.engine.processes.ranks"),
)

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

LOADED = """
from llmk.config import load
from llmk.planning.boot import boot
from llmk.serve import lifecycle, server
from llmk.serve.workers import prepare_worker, served_model
prepare_worker.warm_up(served_model.load(boot(load({}), verify=False)))
"""

READY = """
from llmk.config import load
from llmk.engine.launch import build_packed
from llmk.engine.processes import engine_process
from llmk.planning.boot import boot
from llmk.planning.packed_boot import pack
build_packed(pack(boot(load({}), verify=False)))
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


@pytest.mark.slow
def test_the_process_of_a_server_that_is_ready_to_fork_holds_what_it_needs_alone() -> None:
    """Its workers hold the same. What all processes hold is weighed by ``benchmarks/cpu_start.py``."""
    done = run(LOADED + WATCH.format(heavy=NOT_OF_SERVERS))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_process_of_an_engine_that_is_ready_holds_what_it_needs_alone() -> None:
    done = run(READY + WATCH.format(heavy=NOT_OF_ENGINES))
    assert done.returncode == 0, done.stderr


def test_the_watch_sees() -> None:
    assert run("import torch" + WATCH.format(heavy=HEAVY)).returncode != 0
