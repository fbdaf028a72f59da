"""What the frame around the suites finds, and that nothing that a plugin does takes the report away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import importlib_metadata as metadata
import pytest

from llmk.api import PluginError
from llmk.cli.main import main
from llmk_testing.card import Card
from llmk_testing.case import Result
from llmk_testing.check import Check, find_distributions
from llmk_testing.child import Job
from llmk_testing.collect import Options

Site = Callable[..., str]

PARSERS = """
from defects.parser import claims
from llmk.api import ParserSpec, hookimpl

@hookimpl
def llmk_tool_parsers():
    return [
        ParserSpec(
            id=f"odd.{name.lower()}", name=name.lower(), claims=claims, implementation=f"odd_parsers:{name}",
            examples="defects.parser:EXAMPLES",
        )
        for name in ("Crashing", "Hanging", "Leaving", "Good")
    ]
"""
ODD = """
import ctypes, sys, time
from defects.parser import Good

class Crashing(Good):
    def push(self, text):
        ctypes.string_at(0)

class Hanging(Good):
    def push(self, text):
        print("still thinking", file=sys.stderr, flush=True)
        time.sleep(3600)

class Leaving(Good):
    def push(self, text):
        print('{"event": "end"}', flush=True)
        raise SystemExit(3)
"""
SPECS = """
from llmk.api import OK, ParserSpec, hookimpl
{before}

@hookimpl
def llmk_tool_parsers():
    return [ParserSpec(id="acme.p", name="p", claims=lambda query: OK, implementation="{implementation}")]
"""


def check(name: str, kinds: tuple[str, ...] = ("wheel",), only: str = "", timeout: float = 120) -> list[Result]:
    card = Card(find_distributions([name]))
    Check(card, timeout).run(Job(name, Options(kinds), only))
    return card.results


def failures(results: list[Result]) -> dict[str, str]:
    return {result.name: result.message for result in results if result.outcome == "failed"}


def specs(before: str = "", implementation: str = "defects.parser:Good") -> str:
    return SPECS.format(before=before, implementation=implementation)


@pytest.mark.slow
def test_what_crashes_hangs_or_leaves_is_reported_and_the_rest_goes_on(site: Site) -> None:
    only = "by default, any cut|by default, plain|events of its kind"
    results = check(site("odd", PARSERS, odd_parsers=ODD), ("tool_parser",), only, timeout=5)
    by_spec = {
        spec: [r for r in results if r.spec == f"odd.{spec}"] for spec in ("crashing", "hanging", "leaving", "good")
    }
    for spec, says in (("crashing", "died of SIGSEGV"), ("hanging", "after 5 seconds"), ("leaving", "exit code 3")):
        dead, *rest = by_spec[spec]
        assert (dead.name, dead.outcome) == ("by default, any cut of an example gives the same answer", "failed")
        assert says in dead.message
        assert [one.outcome for one in rest] == ["skipped", "skipped"]
        assert says in rest[0].message
    assert "odd_parsers.py" in by_spec["crashing"][0].message, "the stack tells where"
    assert "still thinking" in by_spec["hanging"][0].message
    assert [one.outcome for one in by_spec["good"]] == ["passed"] * 3


@pytest.mark.slow
def test_a_good_wheel_passes(site: Site) -> None:
    results = check(site("acme", specs()))
    assert len(results) == 8
    assert not failures(results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "name", "says"),
    [
        ("import torch", "acme_specs imports none of the heavy packages", "imports torch"),
        (
            "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass",
            "300 ms",
            " ms of CPU",
        ),
        ("print('acme 1.0')", "prints nothing", "'acme 1.0'"),
        ("import llmk.api.errors as e\ne.LlmkError.code = 'acme'", "leave the names of llmk alone", "LlmkError.code"),
        ("raise RuntimeError('no licence')", "the plugin acme takes part", "RuntimeError: no licence"),
        ("@hookimpl\ndef llmk_tool_parser(): ...", "the plugin acme takes part", "did you mean llmk_tool_parsers"),
        ("@hookimpl\ndef llmk_models(registry): ...", "the plugin acme takes part", "registry"),
        ("@hookimpl\ndef llmk_models(): []", "the hooks of acme return something", "llmk_models returned None"),
    ],
    ids=["torch", "slow", "prints", "patches", "raises", "misspelt-hook", "unknown-argument", "no-return"],
)
def test_a_spec_module_that_misbehaves(site: Site, before: str, name: str, says: str) -> None:
    found = failures(check(site("acme", specs(before)), only=name))
    assert any(name in failed and says in message for failed, message in found.items()), found


@pytest.mark.parametrize(
    ("requires", "says"), [("", "doesn't require llmk-core"), ("llmk-core>=0.1", "allows releases")]
)
def test_the_core_must_be_bounded(site: Site, requires: str, says: str) -> None:
    found = failures(check(site("acme", specs(), requires), only="works with"))
    assert says in found["it says which llmk-core it works with"]


@pytest.mark.slow
def test_an_implementation_that_patches_is_named(site: Site) -> None:
    patching = "import llmk.nn\nfrom defects.parser import Good\nllmk.nn.Linear.forward = lambda self, x: x\n"
    name = site("acme", specs(implementation="acme_impl:Good"), acme_impl=patching)
    (message,) = failures(check(name, only="leave the names")).values()
    assert "importing acme_impl:Good added llmk.nn.linear.Linear.forward" in message


HALF = "class Good:\n    def __init__(self, context): pass\n    def push(self, text): return []"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (HALF, "contract: wanted llmk.api.ToolParser, found no finish()"),
        ("raise OSError('libacme.so is missing')", "OSError: libacme.so is missing"),
        ("", "has no attribute 'Good'"),
    ],
    ids=["half", "raises", "absent"],
)
def test_what_a_spec_names_must_be_there(site: Site, code: str, says: str) -> None:
    name = site("acme", specs(implementation="acme_impl:Good"), acme_impl=code)
    results = check(name, ("tool_parser",), only="what it names|plain text")
    assert says in failures(results)["what it names can be imported"]
    assert {result.outcome for result in results[2:]} == {"skipped"}, "what would fail alike is not told again"


def test_absent_distributions_and_those_that_register_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", "llmk-parser"]) == PluginError.exit_code
    assert "llmk-parser is not installed\n  hint: did you mean llmk-parsers?" in capsys.readouterr().err
    assert main(["plugins", "check", "pluggy"]) == PluginError.exit_code
    assert f"pluggy {metadata.version('pluggy')} registers nothing" in capsys.readouterr().err


def test_the_command(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = site("acme", specs("print('hello')"))
    files = [str(tmp_path / file) for file in ("card.json", "card.md")]
    arguments = ["plugins", "check", name, "--kind", "wheel", "--only", "prints|takes part"]
    assert main([*arguments, "--list"]) == 0
    listed = ["acme::the plugin acme takes part", "acme::acme_specs prints nothing when it is imported"]
    assert capsys.readouterr().out.splitlines() == listed
    assert main([*arguments, "--json", files[0], "--markdown", files[1]]) == 1
    shown = capsys.readouterr().out
    assert f"FAILED {listed[1]}\n    importing acme_specs printed 'hello'" in shown
    assert shown.endswith("red: 1 passed, 1 failed, 0 skipped\n")
    data = json.loads(Path(files[0]).read_text())
    assert data["distributions"] == {"acme": "1.0"}
    assert data["counts"] == {"passed": 1, "failed": 1, "skipped": 0}
    assert "| acme | wheel | 1 | 1 | 0 |" in Path(files[1]).read_text()
    assert main([*arguments[:3], "--only", "no such case", "--kind", "wheel"]) == 2
    assert "no case of acme" in capsys.readouterr().err


def test_a_card_says_why_cases_were_skipped_and_what_takes_no_part() -> None:
    skipped = [Result("a.k", "linear", f"case {i}", "skipped", 0.0, "no graphs facet") for i in range(2)]
    card = Card({"a": "1.0"}, results=skipped, notes=["a.l takes no part in a start: overridden"])
    shown = card.render(color=True)
    assert "skipped 2 of a.k: no graphs facet\nnote: a.l takes no part in a start: overridden" in shown
    assert shown.endswith("\x1b[32mgreen: 0 passed, 0 failed, 2 skipped\x1b[0m")


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    registered = metadata.entry_points(group="pytest11", name="llmk")
    plugin = [] if registered else ["-p", "llmk_testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_cases_as_tests(site: Site, tmp_path: Path) -> None:
    name = site(
        "odd", PARSERS.replace('"Crashing", "Hanging", "Leaving"', '"Deaf"'), odd_parsers="from defects.parser import *"
    )
    (tmp_path / "test_it.py").write_text(f"from llmk_testing import conformance\ntest_it = conformance({name!r})\n")
    done = run_pytest(tmp_path, "--llmk-check", name, "--llmk-card", "card.json", "-k", "finds", "-rA")
    assert done.returncode == 1, done.stdout + done.stderr
    finds = "it finds in its examples what they are examples of"
    for id, outcome in (("odd.deaf", "FAILED"), ("odd.good", "PASSED")):
        assert f"{outcome} {id}::{finds}" in done.stdout
        assert f"{outcome} test_it.py::test_it[{id}::{finds}]" in done.stdout
    assert "no call is found in any of" in done.stdout
    assert json.loads((tmp_path / "card.json").read_text())["counts"] == {"passed": 2, "failed": 2, "skipped": 0}
    refused = run_pytest(tmp_path, "--llmk-check", "absent")
    assert "absent is not installed" in refused.stdout + refused.stderr


def test_the_pytest_plugin_is_cheap() -> None:
    code = "import sys, llmk_testing.plugin; print([m for m in sys.modules if m == 'torch' or m.startswith('llmk')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['llmk_testing', 'llmk_testing.plugin']"
