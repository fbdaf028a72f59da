"""Wheels of the workspace and of strangers, and scratch environments to install them into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from accelerator import build_accelerator, unpack
from scratch import Environment, build_wheels, link_dependencies

ROOT = Path(__file__).resolve().parents[1]
WORKSPACE = {
    name: ROOT / name
    for name in (
        *("core", "models", "backends-cpu", "backends-cuda", "backends-rocm", "backends-tpu", "backends-xpu"),
        *(
            "plugins/anthropic",
            "plugins/bench",
            "plugins/embeddings",
            "plugins/gguf",
            "plugins/grammar",
            "plugins/hub",
            "plugins/int8",
            "plugins/ollama",
        ),
        *(
            "plugins/parsers",
            "plugins/policies",
            "plugins/quantization",
            "plugins/ray",
            "plugins/speculators",
            "plugins/statsd",
        ),
        *("plugins/testing", "plugins/triton", "plugins/web"),
    )
}
FIXTURES = {folder.name: folder for folder in sorted((ROOT / "tests/plugins/fixtures").iterdir()) if folder.is_dir()}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "shared"


@pytest.fixture(scope="session")
def wheels(shared: Path) -> dict[str, Path]:
    """Every wheel of the workspace, by folder, but the meta-distribution."""
    return build_wheels({name.replace("/", "-"): source for name, source in WORKSPACE.items()}, shared / "wheels")


@pytest.fixture(scope="session")
def fixture_wheels(shared: Path) -> dict[str, Path]:
    """The wheels of the fixture plugins, by folder."""
    return build_wheels(FIXTURES, shared / "fixtures")


@pytest.fixture(scope="session")
def accelerator_wheel(pytestconfig: pytest.Config) -> Path:
    """The wheel of ``tests/third_party/accelerator``, which is compiled when it or torch has changed."""
    return build_accelerator(pytestconfig.cache.mkdir("accelerator"))


@pytest.fixture(scope="session")
def accelerator_site(accelerator_wheel: Path) -> Path:
    """The same as if installed, in a folder to be put on the path of a process.

    torch takes one such device in a process, and never lets go of it: in the tests' own process, it shows in
    ``torch.accelerator`` from then on.
    """
    return unpack(accelerator_wheel)


@pytest.fixture(scope="session")
def dependencies(shared: Path) -> Path:
    """Third-party packages, as linked folders."""
    shared.mkdir(exist_ok=True)
    return link_dependencies(shared / "dependencies")


@pytest.fixture(scope="module")
def make_environment(tmp_path_factory: pytest.TempPathFactory, dependencies: Path) -> Callable[..., Environment]:
    """Makes a scratch environment with the wheels given."""

    def make(*wheels: Path) -> Environment:
        environment = Environment.create(tmp_path_factory.mktemp("environment") / "venv", dependencies)
        environment.install(*wheels)
        return environment

    return make
