"""A plugin author's way, in a clean environment with nothing but wheels: from ``llmk plugins new`` to a plugin that is
checked, served, compared, broken and gone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scratch import Environment, build_wheels
from served import Served, until

pytestmark = pytest.mark.slow_file

FLOAT32 = {"LLMK__MODEL__DTYPE": "float32", "PYTHONPATH": ""}
BODY = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
}
PIN = '[select.linear]\nuse = "widget.linear"\n'
SHADOW = '[select.linear]\nshadow = "{}"\nshadow_rate = 1.0\n'
LABELS = r"\{[^}]*shadow=\"%s\"[^}]*\}"


@pytest.fixture(scope="module")
def environment(make_environment: Callable[..., Environment], wheels: dict[str, Path]) -> Environment:
    return make_environment(*(wheels[name] for name in ("core", "models", "backends-cpu", "plugins-testing")))


@pytest.fixture(scope="module")
def project(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``llmk plugins new`` writes."""
    folder = tmp_path_factory.mktemp("author")
    done = environment.llmk("plugins", "new", "llmk-widget", "--kind", "linear", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "llmk serve --select.linear.use widget.linear" in done.stdout, "it says how to go on"
    return folder / "llmk-widget"


@pytest.fixture(scope="module")
def built(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Its wheel, and those of two copies that were broken on purpose: one can't be imported, one computes nonsense."""
    folder = tmp_path_factory.mktemp("copies")
    sources = {"widget": project}
    for name, file, before, after in (
        ("sprocket", "specs.py", "from llmk.api import", "import sprocket_runtime\nfrom llmk.api import"),
        ("gadget", "linear.py", "x @ weight", "x @ weight * 1.25"),
    ):
        sources[name] = folder / name
        for path in filter(Path.is_file, project.rglob("*")):
            copy = folder / name / str(path.relative_to(project)).replace("widget", name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text().replace("widget", name))
        broken = folder / name / f"src/llmk_{name}" / file
        assert before in broken.read_text()
        broken.write_text(broken.read_text().replace(before, after))
    return build_wheels(sources, folder / "wheels")


@pytest.fixture(scope="module")
def plan(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The plan where nothing is installed but ours."""
    return explain(environment, tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def answer(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is answered then."""
    with serving(environment, tmp_path_factory.mktemp("alone")) as server:
        return told(server)


@contextmanager
def installed(environment: Environment, *wheels: Path) -> Iterator[None]:
    environment.install(*wheels)
    try:
        yield
    finally:
        environment.uninstall(*(f"llmk-{wheel.parent.name}" for wheel in wheels))


@contextmanager
def serving(environment: Environment, cwd: Path) -> Iterator[Served]:
    server = Served(cwd / "log", "--port", "0", env=FLOAT32, python=environment.python, cwd=cwd)
    try:
        yield server
    finally:
        server.close()


def told(server: Served) -> str:
    status, reply = server.post("/v1/chat/completions", BODY)
    assert status == 200, reply
    return str(reply["choices"][0]["message"]["content"])


def explain(environment: Environment, cwd: Path) -> Any:
    done = environment.llmk("explain", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def products(plan: Any) -> list[Any]:
    return [choice["pieces"][0] for choice in plan["choices"] if choice["kind"] == "linear"]


def metric(server: Served, name: str, shadow: str) -> float:
    """The sum over all sites."""
    found = re.findall(rf"^llmk_shadow_{name}{LABELS % re.escape(shadow)} (\S+)$", server.get("/metrics")[1], re.M)
    assert found, f"no shadow_{name} of {shadow}"
    return sum(map(float, found))


@pytest.mark.slow
def test_it_is_installed_checked_pinned_served_and_gone(
    environment: Environment, built: dict[str, Path], plan: Any, answer: str, tmp_path: Path
) -> None:
    with installed(environment, built["widget"]):
        assert re.search(r"^widget +llmk-widget 0\.1\.0 +active +linear_kernels", state(environment, tmp_path), re.M)
        checked = environment.llmk("plugins", "check", "llmk-widget", cwd=tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert re.search(r"^green: \d\d passed, 0 failed", checked.stdout, re.M), checked.stdout
        assert products(explain(environment, tmp_path)) == products(plan), "being installed changes no winner"
        (tmp_path / "llmk.toml").write_text(PIN)
        pieces = products(explain(environment, tmp_path))
        assert {(piece["id"], piece["why"]) for piece in pieces} == {("widget.linear", "pinned by [select.linear] use")}
        with serving(environment, tmp_path) as server:
            assert told(server) == answer
    (tmp_path / "llmk.toml").unlink()
    assert explain(environment, tmp_path) == plan, "uninstalled, it leaves nothing behind"


def test_it_runs_beside_what_serves_before_it_is_trusted(
    environment: Environment, built: dict[str, Path], answer: str, tmp_path: Path
) -> None:
    (tmp_path / "llmk.toml").write_text(SHADOW.format("widget.linear"))
    with installed(environment, built["widget"]), serving(environment, tmp_path) as server:
        assert told(server) == answer
        until(lambda: metric(server, "calls_compared_total", "widget.linear") > 0)
        assert metric(server, "calls_diverged_total", "widget.linear") == 0
        assert metric(server, "failures_total", "widget.linear") == 0


@pytest.mark.slow
def test_broken_ones_harm_nobody_and_are_found_out(
    environment: Environment, built: dict[str, Path], answer: str, tmp_path: Path
) -> None:
    (tmp_path / "llmk.toml").write_text(SHADOW.format("gadget.linear"))
    with installed(environment, built["sprocket"], built["gadget"]):
        assert re.search(r"^sprocket +llmk-sprocket 0\.1\.0 +broken", state(environment, tmp_path), re.M)
        cards = [environment.llmk("plugins", "check", f"llmk-{name}", cwd=tmp_path) for name in ("sprocket", "gadget")]
        assert [card.returncode for card in cards] == [1, 1]
        assert all(re.search(r"^red: .* [1-9]\d* failed", card.stdout, re.M) for card in cards)
        assert "No module named 'sprocket_runtime'" in cards[0].stdout
        assert re.search(r"FAILED gadget\.linear::agrees with the reference.*\n +.*relative error", cards[1].stdout)
        with serving(environment, tmp_path) as server:
            assert told(server) == answer, "neither one's mistake reaches an answer"
            until(lambda: metric(server, "calls_diverged_total", "gadget.linear") > 0)
        log = (tmp_path / "log").read_text()
        assert "plugin sprocket (llmk-sprocket 0.1.0) is broken, left out" in log
        assert "the shadow gadget.linear differs" in log


def state(environment: Environment, cwd: Path) -> str:
    """What ``llmk plugins`` shows."""
    return environment.llmk("plugins", cwd=cwd).stdout
