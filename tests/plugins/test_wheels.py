"""Every distribution builds to a wheel that carries what it needs, and installs and uninstalls alone."""

from __future__ import annotations

import email
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from scratch import Environment, build_wheels

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "core": "llmk",
    "models": "llmk_models",
    "backends-cpu": "llmk_cpu",
    "backends-cuda": "llmk_cuda",
    "backends-rocm": "llmk_rocm",
    "backends-tpu": "llmk_tpu",
    "backends-xpu": "llmk_xpu",
    "plugins-anthropic": "llmk_anthropic",
    "plugins-bench": "llmk_bench",
    "plugins-embeddings": "llmk_embeddings",
    "plugins-gguf": "llmk_gguf",
    "plugins-grammar": "llmk_grammar",
    "plugins-hub": "llmk_hub",
    "plugins-int8": "llmk_int8",
    "plugins-ollama": "llmk_ollama",
    "plugins-parsers": "llmk_parsers",
    "plugins-policies": "llmk_policies",
    "plugins-quantization": "llmk_quantization",
    "plugins-ray": "llmk_ray",
    "plugins-speculators": "llmk_speculators",
    "plugins-statsd": "llmk_statsd",
    "plugins-testing": "llmk_testing",
    "plugins-triton": "llmk_triton",
    "plugins-web": "llmk_web",
}
DEMO = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def contents(wheel: Path) -> set[str]:
    """Names of all files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> email.message.Message:
    """A wheel's METADATA, which is valid."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name)
    Metadata.from_email(text, validate=True)
    return email.message_from_bytes(text)


@pytest.mark.parametrize("name", PACKAGES)
def test_wheel_holds_the_whole_package_and_nothing_else(name: str, wheels: dict[str, Path]) -> None:
    folder = ROOT / name.replace("plugins-", "plugins/") / "src" / PACKAGES[name]
    source = {f"{PACKAGES[name]}/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()}
    source = {path for path in source if "__pycache__" not in path}
    if name == "backends-cpu":
        source.add("llmk_cpu/native/libllmk_cpu.so")
    packed = {path for path in contents(wheels[name]) if ".dist-info/" not in path}
    assert packed == source
    assert f"{PACKAGES[name]}/py.typed" in packed


@pytest.mark.parametrize("name", PACKAGES)
def test_metadata(name: str, wheels: dict[str, Path]) -> None:
    message = metadata(wheels[name])
    assert message["Author"] == "The llmk authors"
    assert len(message.get_all("Project-URL")) == 5
    assert message["License-Expression"] == "Apache-2.0"
    assert message["Requires-Python"] == ">=3.11"
    assert len(str(message.get_payload())) > 300, "the README is the page on the package index"
    always = [line for line in message.get_all("Requires-Dist") if "extra ==" not in line]
    requirements = [re.split(r"[^\w.-]", line)[0] for line in always]
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in contents(wheels[name]))
    first_party = [requirement for requirement in requirements if requirement.startswith("llmk")]
    assert first_party == ([] if name == "core" else ["llmk-core"]), "a plugin needs the core and no other plugin"


def test_demo_model_ships_and_is_small(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["models"]) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    assert {f"llmk_models/demo/{name}" for name in DEMO} <= set(sizes)
    assert sum(size for name, size in sizes.items() if "/demo/" in name) <= 12 << 20


def test_the_page_is_in_its_wheel(wheels: dict[str, Path]) -> None:
    folder = ROOT / "plugins/web/src/llmk_web/page"
    assert {f"llmk_web/page/{file.name}" for file in folder.iterdir()} <= contents(wheels["plugins-web"])


@pytest.fixture(scope="module")
def llmk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the distribution that names the others."""
    folder = tmp_path_factory.mktemp("meta")
    copy = folder / "llmk"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    return build_wheels({"llmk": copy}, folder / "wheels")["llmk"]


def test_meta_distribution_names_the_others(llmk: Path) -> None:
    assert all(".dist-info/" in name for name in contents(llmk)), "it holds nothing of its own"
    message = metadata(llmk)
    required = {re.split(r"[^\w.-]", line)[0] for line in message.get_all("Requires-Dist") if "extra" not in line}
    apis = {"llmk-anthropic", "llmk-ollama", "llmk-web"}
    assert required == {
        "llmk-core",
        "llmk-hub",
        "llmk-models",
        "llmk-parsers",
        "llmk-policies",
        "llmk-quantization",
        *apis,
    }
    assert set(message.get_all("Provides-Extra")) == {
        "bench",
        "cpu",
        "cuda",
        "rocm",
        "xpu",
        "tpu",
        "gguf",
        "ray",
        "all",
        "docs",
        "test",
    }


def test_extras_resolve_from_the_wheels(
    llmk: Path, wheels: dict[str, Path], make_environment: Callable[..., Environment]
) -> None:
    """Nothing is fetched from anywhere: third-party packages are there, llmk's own are these."""
    environment = make_environment(wheels["core"])
    links = [option for wheel in wheels.values() for option in ("--find-links", str(wheel.parent))]
    environment.pip("install", "--no-index", "--no-compile", *links, f"llmk[all] @ {llmk.as_uri()}")
    environment.pip("check")


@pytest.fixture(scope="module")
def bare(wheels: dict[str, Path], make_environment: Callable[..., Environment]) -> Environment:
    """An environment with the core alone, which every plugin leaves as it was."""
    return make_environment(wheels["core"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PACKAGES if name not in ("core", "backends-tpu")])  # no plugins
def test_plugin_installs_and_uninstalls_alone(
    name: str, wheels: dict[str, Path], bare: Environment, tmp_path: Path
) -> None:
    before = {path for path in bare.site_packages.rglob("*") if "__pycache__" not in path.parts}
    bare.install(wheels[name])
    listed = bare.llmk("plugins", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    distribution = metadata(wheels[name])["Name"]
    (row,) = (line for line in listed.stdout.splitlines() if distribution in line)
    assert "active" in row
    bare.uninstall(distribution)
    assert distribution not in bare.llmk("plugins", cwd=tmp_path).stdout
    after = {path for path in bare.site_packages.rglob("*") if "__pycache__" not in path.parts}
    assert after == before
