"""What the container file and the page about deployment say is true of the repository and of the server."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from llmk.config import load
from llmk.serve.http.auth import OPEN_PATHS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/deploy.md").read_text()
IMAGE = (ROOT / "Containerfile").read_text()
INSTRUCTION = re.compile(r"^(?P<name>[A-Z]+) (?P<rest>(?:.*\\\n)*.*)$", re.M)


def instructions(name: str) -> list[str]:
    """What follows each instruction of that name."""
    return [found["rest"] for found in INSTRUCTION.finditer(IMAGE) if found["name"] == name]


def blocks(language: str) -> list[str]:
    """Fenced blocks of the page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S)


def names(folders: list[str]) -> set[str]:
    """Names of the distributions in folders."""
    return {tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["name"] for folder in folders}


def needed(extra: str) -> set[str]:
    """What ``llmk[extra]`` installs of this repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return {"llmk", *(re.split(r"[>=<\[]", word)[0] for word in words)}


@pytest.mark.parametrize("extra", ["cpu", "cuda"])
def test_the_image_has_the_wheels_of_its_extra(extra: str) -> None:
    """It names wheels as files, so that a wheel that is left out would come from an index, or not at all."""
    (built,) = [rest for rest in instructions("RUN") if "pip wheel" in rest]
    cpu = next(rest for rest in instructions("ARG") if rest.startswith("BACKENDS="))
    cuda = re.search(r'BACKENDS="([^"]*)"', PAGE)
    assert cuda
    backends = cuda[1] if extra == "cuda" else cpu.partition("=")[2].strip('"')
    assert cuda[1] in IMAGE, "the file and the page name the same wheels"
    folders = built.partition("/wheels")[2].replace("\\\n", " ").replace("${BACKENDS}", backends).split()
    assert names(folders) == needed(extra)


def test_what_the_image_needs_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / path).exists() for path in kept)
    copied = {path.removeprefix("./").split("/")[0] for path in re.findall(r"\./[\w/-]+", IMAGE)}
    assert copied <= kept
    assert {"LICENSE", "README.md", "constraints.txt"} <= kept, "metadata and the install name them"


def test_the_image_serves_and_its_health_is_open() -> None:
    assert instructions("ENTRYPOINT") == ['["llmk"]']
    assert instructions("CMD") == ['["serve"]']
    (check,) = instructions("HEALTHCHECK")
    path = re.search(r"http://127\.0\.0\.1:8000(/\w+)", check)
    assert path
    assert path[1] in OPEN_PATHS
    variables = dict(re.findall(r"(LLMK__\w+)=(\S+)", IMAGE))
    assert load(cwd=ROOT / "docs", environ=variables).config.server.host == "0.0.0.0"


def test_defaults_that_the_page_names_are_the_servers(tmp_path: Path) -> None:
    server = load(cwd=tmp_path, environ={}).config.server
    assert f"server.keep_alive ({server.keep_alive:g})" in PAGE
    assert f"`server.drain_seconds` ({server.drain_seconds:g})" in PAGE
    assert f"`server.max_connections` ({server.max_connections:,})" in PAGE
    assert server.max_request_bytes == 16 << 20, "nginx and Caddy are configured for 16 MiB"


def test_the_yaml_can_be_read() -> None:
    probes, scraping = (yaml.safe_load(block) for block in blocks("yaml"))
    paths = {probe["httpGet"]["path"] for name, probe in probes.items() if name.endswith("Probe")}
    assert paths <= OPEN_PATHS
    assert probes["terminationGracePeriodSeconds"] > 30
    assert scraping["scrape_configs"][0]["authorization"]


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "llmk.toml").write_text(text)
    assert load(cwd=tmp_path, environ={}).config.server.tls_certificate


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    (text,) = blocks("ini")
    file = tmp_path / "llmk.service"
    file.write_text(
        text.replace("/opt/llmk/bin/llmk", shutil.which("true") or "").replace("/usr/bin/curl", "/bin/true")
    )
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "llmk.service" not in done.stderr, done.stderr
