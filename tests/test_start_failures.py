"""What ``llmk serve`` prints where it can't start: what is wrong, and nothing about itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from served import LLMK, MODEST

from llmk_testing.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow_file

LOG = re.compile(r"\d{4}-\d\d-\d\d \S+ INFO .*")


def told(*args: str) -> tuple[int, list[str]]:
    """Exit status, and what is on standard error beside the log's ordinary lines."""
    done = subprocess.run(
        [*LLMK, "serve", "--port", "0", *args], capture_output=True, text=True, timeout=180, env=environment()
    )
    return done.returncode, [line for line in done.stderr.splitlines() if not LOG.fullmatch(line)]


def environment() -> dict[str, str]:
    """Without a network: what a test names by mistake must not be downloaded."""
    return {**os.environ, **MODEST, "HF_HUB_OFFLINE": "1"}


def without_tokenizer(folder: Path) -> str:
    model = write_checkpoint(folder / "model", "qwen3")
    for file in model.glob("tokenizer*"):
        file.unlink()
    return str(model)


def gguf(folder: Path) -> str:
    file = folder / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda _: ["/no/such/model"], "/no/such/model"),
        (lambda _: ["Qwen/Qwen3-8B"], "Qwen/Qwen3-8B"),
        (lambda folder: [without_tokenizer(folder)], "tokenizer"),
        (lambda folder: [gguf(folder)], "model.gguf"),
        (lambda _: ["demo", "--parallel.tensor", "7"], "parallel.tensor"),
        (lambda _: ["demo", "--cache.num-blocks", "100000000"], "cache"),
    ],
    ids=["path", "hub id", "no tokenizer", "GGUF", "tensor", "memory"],
)
def test_what_keeps_it_from_starting_is_all_that_it_prints(
    tmp_path: Path, arguments: Callable[[Path], list[str]], words: str
) -> None:
    status, lines = told(*arguments(tmp_path))
    assert status not in (0, 1)
    assert lines[0].startswith("llmk: ")
    assert words in "\n".join(lines)
    assert all(line.startswith("  ") for line in lines[1:]), lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_says_so_and_nothing_else(number: signal.Signals) -> None:
    """While the engine's process builds the model."""
    process = subprocess.Popen(
        [*LLMK, "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line.rstrip())
        if "tokenizer: " in line:
            break
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    lines = [line for line in (*seen, *rest.splitlines()) if not LOG.fullmatch(line)]
    assert lines == []
    assert "stopped before the model was loaded" in rest
    assert process.returncode == 0
