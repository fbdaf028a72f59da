"""Wheels that break, clash, come too early or raise: each harms nobody but itself, until somebody asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scratch import Environment, run

pytestmark = pytest.mark.slow_file

BAD = ("broken_import", "clashing_id", "needs_future", "raises_in_hook")
STATES = {
    "fixture-broken": "broken",
    "fixture-future": "incompatible",
    "fixture-good": "active",
    "fixture-raises": "broken",
    "fixture-rival": "conflicting",
    "llmk-core": "active",
}


@pytest.fixture(scope="module")
def environment(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], fixture_wheels: dict[str, Path]
) -> Environment:
    """Everything that this repository ships, a good fixture, and all the bad ones."""
    return make_environment(*wheels.values(), fixture_wheels["good"], *(fixture_wheels[name] for name in BAD))


@pytest.fixture(scope="module")
def listed(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``llmk plugins --json`` says, by distribution."""
    marker = tmp_path_factory.mktemp("future") / "imported"
    done = environment.llmk("plugins", "--json", cwd=marker.parent, FIXTURE_FUTURE_FILE=str(marker))
    assert done.returncode == 0, done.stderr
    assert not marker.exists(), "a plugin that needs a newer core must not be imported"
    return {plugin["distribution"]: plugin for plugin in json.loads(done.stdout)}


def reason(plugin: dict[str, Any]) -> dict[str, str]:
    """The one reason why a plugin is out."""
    (found,) = plugin["reasons"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("distribution", STATES)
def test_state(distribution: str, listed: dict[str, Any]) -> None:
    assert listed[distribution]["state"] == STATES[distribution]


def test_states_of_the_others(listed: dict[str, Any]) -> None:
    assert {plugin["state"] for name, plugin in listed.items() if name not in STATES} == {"active"}


def test_broken_import_says_what_it_raised(listed: dict[str, Any]) -> None:
    broken = listed["fixture-broken"]
    assert reason(broken)["code"] == "import_failed"
    assert "RuntimeError: this fixture breaks on import" in reason(broken)["found"]
    assert "fixture_broken/specs.py" in broken["traceback"]


def test_clash_names_both_wheels(listed: dict[str, Any]) -> None:
    text = " ".join(reason(listed["fixture-rival"]).values())
    assert "fixture-rival 1.0" in text
    assert "fixture-good 1.0" in text
    assert "disable" in text


def test_future_names_what_it_needs_and_what_there_is(listed: dict[str, Any]) -> None:
    future = reason(listed["fixture-future"])
    assert (future["code"], future["wanted"], future["found"]) == ("core_version", "llmk-core>=99", "llmk-core 0.1.0")
    assert "pip install" in future["hint"]


def test_raising_hook_is_named_and_nothing_of_its_plugin_is_left(
    listed: dict[str, Any], environment: Environment, tmp_path: Path
) -> None:
    raises = listed["fixture-raises"]
    assert reason(raises)["code"] == "hook_raised"
    assert reason(raises)["wanted"] == "llmk_ops"
    assert "ZeroDivisionError: this fixture raises in a hook" in reason(raises)["found"]
    assert "raises.io" not in environment.llmk("plugins", cwd=tmp_path).stdout


def test_table_shows_every_plugin_with_its_reason(environment: Environment, tmp_path: Path) -> None:
    done = environment.llmk("plugins", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for distribution, state in STATES.items():
        (row,) = (line for line in done.stdout.splitlines() if distribution in line.split() and state in line.split())
        assert row
    for text in ("this fixture breaks on import", "this fixture raises in a hook", "llmk-core>=99"):
        assert text in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_models_are_planned_all_the_same_with_one_warning_each(environment: Environment, tmp_path: Path) -> None:
    done = environment.llmk("explain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for distribution in ("fixture-broken", "fixture-rival", "fixture-future", "fixture-raises"):
        warnings = [
            line for line in done.stdout.splitlines() if line.startswith("warning:") and f"({distribution} 1.0)" in line
        ]
        assert len(warnings) == 1, f"{distribution}: {warnings}"


def test_models_answer_all_the_same(environment: Environment, tmp_path: Path) -> None:
    done = environment.llmk("run", "demo", "What is the capital of France?", "--temperature", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_strict_makes_a_bad_plugin_fatal(environment: Environment, tmp_path: Path) -> None:
    done = environment.llmk("explain", "--strict", cwd=tmp_path)
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("broken", ["fixture-broken 1.0", "this fixture breaks on import"]),
        ("raises", ["fixture-raises 1.0", "this fixture raises in a hook"]),
        ("future", ["fixture-future 1.0", "llmk-core>=99", "llmk-core 0.1.0"]),
        ("fixture-rival", ["fixture-rival 1.0", "fixture-good 1.0"]),
        ("absent", ["'absent'", "not installed"]),
    ],
)
def test_bad_plugin_that_the_config_requires_is_fatal(
    environment: Environment, tmp_path: Path, name: str, texts: list[str]
) -> None:
    (tmp_path / "llmk.toml").write_text(f'[plugins]\nrequire = ["{name}"]\n')
    done = environment.llmk("explain", "--on", "good/g1", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    for text in texts:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_plugin_that_is_to_be_the_only_one_is_fatal(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text('[plugins]\nonly = ["cpu", "models", "broken"]\n')
    done = environment.llmk("explain", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "this fixture breaks on import" in done.stderr


def test_clash_is_settled_by_leaving_one_out(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text('[plugins]\ndisable = ["fixture-good"]\n')
    done = environment.llmk("plugins", "--json", cwd=tmp_path)
    states = {plugin["distribution"]: plugin["state"] for plugin in json.loads(done.stdout)}
    assert (states["fixture-good"], states["fixture-rival"]) == ("blocked", "active")


@pytest.mark.parametrize(
    ("name", "place"), [("broken", "fixture_broken/specs.py"), ("raises", "fixture_raises/specs.py")]
)
def test_debug_shows_the_plugins_own_traceback(environment: Environment, tmp_path: Path, name: str, place: str) -> None:
    (tmp_path / "llmk.toml").write_text(f'[plugins]\nrequire = ["{name}"]\n')
    done = environment.llmk("--debug", "explain", cwd=tmp_path)
    assert done.returncode == 3
    assert "Traceback" in done.stderr
    assert place in done.stderr


def test_disabled_plugin_is_not_imported_and_no_warning(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text(
        '[plugins]\ndisable = ["fixture-broken", "raises", "future", "fixture-rival"]\n[model]\ndtype = "float32"\n'
    )  # float32, as some processors warn of bfloat16
    listed = environment.llmk("plugins", "--json", cwd=tmp_path)
    states = {plugin["distribution"]: plugin["state"] for plugin in json.loads(listed.stdout)}
    assert {states[name] for name in ("fixture-broken", "fixture-raises", "fixture-future", "fixture-rival")} == {
        "blocked"
    }
    assert states["fixture-good"] == "active"
    assert "warning" not in environment.llmk("explain", cwd=tmp_path).stdout


def test_doctor_tells_of_every_bad_plugin(environment: Environment, tmp_path: Path) -> None:
    done = environment.llmk("doctor", cwd=tmp_path)
    assert done.returncode != 0
    for distribution in ("fixture-broken", "fixture-rival", "fixture-future", "fixture-raises"):
        assert distribution in done.stdout


def test_environment_is_sound(environment: Environment) -> None:
    """Everything that the wheels require is there, but for the fixture that requires what there is not."""
    done = run([str(environment.python), "-m", "pip", "check"])
    complaints = [line for line in done.stdout.splitlines() if "llmk" in line or "fixture" in line]
    assert all(line.startswith("fixture-future 1.0") for line in complaints), complaints
