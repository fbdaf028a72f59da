"""A process with JAX and no torch, which the tests send work to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

# Several CPUs in place of several TPUs, for all tests of the process: JAX can't change that once it was used.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def jax_process() -> Iterator[Run]:
    """Calls a function of ``jax_side.py`` in a process of its own: ``run("tokens", folder=...)``."""
    if find_spec("jax") is None:
        pytest.skip("JAX is not installed: pip install 'llmk-backends-tpu[jax]'")
    command = [sys.executable, str(HERE / "jax_side.py")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout

        def run(name: str, **arguments: Any) -> Any:
            print(json.dumps([name, arguments]), file=stdin, flush=True)
            answer = json.loads(stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["result"]

        yield run
        stdin.close()
