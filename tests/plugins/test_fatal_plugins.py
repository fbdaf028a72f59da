"""Wheels that hang, or take the process with them: each is named, and where anything can go on, it does without."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scratch import LLMK, Environment

pytestmark = pytest.mark.slow_file

SECONDS = 4
QUICK = f"--plugins.import-seconds={SECONDS}"
"""Not so few that a busy machine has other plugins left out."""
INTERRUPTED = ("loop", "sleep", "catches")
RAISED = ("exit", "interrupt")


@pytest.fixture(scope="module")
def environment(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], fixture_wheels: dict[str, Path]
) -> Environment:
    """What serves a model on a CPU, and the wheel in question."""
    named = ("core", "models", "backends-cpu")
    return make_environment(*(wheels[name] for name in named), fixture_wheels["fatal"])


def llmk(environment: Environment, cwd: Path, place: str, what: str, *arguments: str) -> Any:
    done: subprocess.CompletedProcess[str] = environment.llmk(
        *arguments, cwd=cwd, FIXTURE_FATAL=what, FIXTURE_FATAL_AT=place
    )
    return done


@pytest.mark.parametrize(
    ("place", "what"), [*(("import", what) for what in (*INTERRUPTED, *RAISED)), ("hook", "loop"), ("hook", "exit")]
)
def test_what_can_be_interrupted_is_left_out(environment: Environment, tmp_path: Path, place: str, what: str) -> None:
    done = llmk(environment, tmp_path, place, what, "plugins", QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = {plugin["name"]: plugin for plugin in json.loads(done.stdout)}
    assert found["fatal"]["state"] == "broken"
    (reason,) = found["fatal"]["reasons"]
    assert reason["code"] == {"import": "import_failed", "hook": "hook_raised"}[place]
    if what in INTERRUPTED:
        assert f"not finished after {SECONDS} s" in reason["found"]
        assert "act.py" in found["fatal"]["traceback"], "which shows where it hangs"
    assert {plugin["state"] for name, plugin in found.items() if name != "fatal"} == {"active"}


def test_a_plugin_that_hangs_is_fatal_where_it_is_asked_for(environment: Environment, tmp_path: Path) -> None:
    done = llmk(environment, tmp_path, "import", "loop", "explain", QUICK, "--plugins.require=fatal")
    assert done.returncode == 3
    assert "fixture-fatal 1.0" in done.stderr
    assert f"not finished after {SECONDS} s" in done.stderr


def test_a_model_is_planned_without_a_plugin_that_hangs(environment: Environment, tmp_path: Path) -> None:
    done = llmk(environment, tmp_path, "import", "sleep", "explain", QUICK)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stdout.splitlines() if line.startswith("warning: plugin fatal")]
    assert f"not finished after {SECONDS} s" in warning


def test_a_server_starts_without_a_plugin_that_hangs(environment: Environment, tmp_path: Path) -> None:
    command = [str(environment.python), "-c", LLMK, "serve", "--server.port=0", QUICK]
    environ = {**os.environ, "FIXTURE_FATAL": "sleep", "FIXTURE_FATAL_AT": "import"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, **streams) as server:
        ending = threading.Timer(120, server.kill)
        ending.start()
        said = ""
        while "http://127.0.0.1:" not in said and (line := server.stdout.readline()):
            said += line
        ending.cancel()
        server.terminate()
        server.stdout.read()
    assert "http://127.0.0.1:" in said, said
    assert f"not finished after {SECONDS} s" in said
    assert "fixture-fatal 1.0" in said


def test_a_start_that_hangs_in_a_plugin_ends_and_names_it(environment: Environment, tmp_path: Path) -> None:
    """The plan is made in a thread, which nothing can interrupt."""
    flags = (QUICK, "--select.op.prefer=fatal.norm", "--plugins.trust=fixture-fatal")
    done = llmk(environment, tmp_path, "kernel", "sleep", "run", "demo", "Hello", *flags)
    assert done.returncode == -9
    what = "fixture_fatal.kernels:norm"
    assert f"llmk: the import of {what} (fixture-fatal 1.0) is not finished after" in done.stderr
    assert "] disable = [" in done.stderr


@pytest.mark.parametrize("what", ["stubborn", "deaf"])
def test_what_nothing_interrupts_is_named_and_killed(environment: Environment, tmp_path: Path, what: str) -> None:
    done = llmk(environment, tmp_path, "import", what, "plugins", QUICK)
    assert done.returncode == -9
    for part in (
        "llmk: the import of plugin 'fatal' (fixture-fatal 1.0)",
        f"after {SECONDS} s",
        '[plugins] disable = ["fatal"]',
    ):
        assert part in done.stderr
    assert llmk(environment, tmp_path, "import", what, "plugins", "--plugins.disable=fatal").returncode == 0


@pytest.mark.parametrize(
    ("place", "command", "where"),
    [
        ("import", "plugins", "the import of plugin 'fatal' (fixture-fatal 1.0)"),
        ("hook", "explain", "hook llmk_platforms of plugin 'fatal' (fixture-fatal 1.0)"),
        ("probe", "explain", "the probe of fatal.none (fixture-fatal 1.0)"),
    ],
)
@pytest.mark.parametrize(("what", "code"), [("leave", 0), ("abort", -6), ("segfault", -11)])
def test_what_ends_the_process_is_named(
    environment: Environment, tmp_path: Path, place: str, command: str, where: str, what: str, code: int
) -> None:
    done = llmk(environment, tmp_path, place, what, command)
    assert done.returncode == code
    assert f"llmk: this process ended during {where}" in done.stderr
    assert '[plugins] disable = ["fatal"]' in done.stderr


def test_a_kernel_that_ends_the_engine_as_it_is_imported_is_named(environment: Environment, tmp_path: Path) -> None:
    chosen = ("--select.op.prefer=fatal.norm", "--plugins.trust=fixture-fatal")
    done = llmk(environment, tmp_path, "kernel", "abort", "run", "demo", "Hello", *chosen)
    assert done.returncode != 0
    assert "during the import of fixture_fatal.kernels:norm (fixture-fatal 1.0)" in done.stderr


def test_nothing_is_told_of_a_process_that_is_well(environment: Environment, tmp_path: Path) -> None:
    for command in (("plugins",), ("explain",), ("run", "demo", "Hello")):
        done = llmk(environment, tmp_path, "import", "nothing", *command)
        assert done.returncode == 0, done.stderr
        assert "during" not in done.stderr
