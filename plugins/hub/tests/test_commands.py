"""The commands, with a server that speaks the hub's protocol named by ``HF_ENDPOINT``."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmk.config import load
from llmk.kernel.registry import Registry
from llmk.planning.choices.models import find_checkpoint
from llmk_testing.hub_server import Fault, HubServer, Repository

Llmk = Callable[..., subprocess.CompletedProcess[str]]


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by name."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def demo(server: HubServer) -> str:
    """The name of the demo model on the server."""
    folder = find_checkpoint(Registry.discover(load(environ={}).config.plugins), "")
    server.repositories["acme/demo"] = Repository({"main": read_folder(Path(folder))})
    return "acme/demo"


def test_explain_downloads_no_weights(llmk: Llmk, demo: str, server: HubServer) -> None:
    done = llmk("explain", demo, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["architecture"] == "Qwen3ForCausalLM"
    assert "downloading acme/demo: " in done.stderr
    assert server.bodies(f"/{demo}/resolve/.*/model.safetensors") == ["bytes=0-262143"]


@pytest.mark.slow
def test_a_model_is_pulled_listed_and_run_offline(llmk: Llmk, demo: str, server: HubServer) -> None:
    pulled = llmk("pull", demo)
    assert pulled.returncode == 0, pulled.stderr
    (row,) = json.loads(llmk("models", "--json").stdout)
    assert (row["name"], row["architecture"], row["can_be_served"]) == (demo, "Qwen3ForCausalLM", True)
    assert row["path"] == pulled.stdout.strip()
    assert f"did you mean {demo}, which is in the cache?" in llmk("explain", "dmeo/demo").stderr
    assert f"did you mean {demo}?" in llmk("explain", "./acme/demoo").stderr
    before = len(server.requests)
    done = llmk("run", demo, "What is the capital of France?", HF_HUB_OFFLINE="1")
    assert "Paris" in done.stdout, done.stderr
    assert len(server.requests) == before


@pytest.mark.slow
def test_a_download_that_is_killed_goes_on_where_it_was(llmk: Llmk, environ: dict[str, str], server: HubServer) -> None:
    weights = server.repositories["acme/long"].files("main")["model.safetensors"]
    name = hashlib.sha256(weights).hexdigest()
    path, half = f"/cdn/acme/long/{name}", 12 << 20
    server.faults.append(Fault(path, after=half, silence=60))
    partial = Path(environ["HF_HOME"]) / f"hub/models--acme--long/blobs/{name}.incomplete"
    pulling = subprocess.Popen([sys.executable, "-P", "-m", "llmk", "pull", "acme/long"], env=environ)
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size == half):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pulling.kill()
    pulling.wait()
    done = llmk("pull", "acme/long")
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == weights
    assert server.bodies(path) == ["", f"bytes={half}-"]
    assert server.sent[path] == len(weights)


def test_what_can_not_be_had_ends_in_one_message(llmk: Llmk, tmp_path: Path) -> None:
    done = llmk("serve", "acme/gated", "--port", "0")
    assert done.returncode == 5
    message, hint = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert message == "llmk: acme/gated is gated: it is downloaded only by accounts that have access"
    assert hint.startswith("  hint: accept its terms")
    assert "there is no checkpoint folder ./acme/toy" in llmk("explain", "./acme/toy").stderr
    done = llmk("pull", "toy")
    assert "no installed source of models knows the name 'toy'" in done.stderr
    assert "hint: did you mean demo?" in llmk("explain", "dmeo").stderr
    (tmp_path / "acme" / "toy").mkdir(parents=True)
    assert "has no config.json" in llmk("explain", "acme/toy").stderr, "a folder that there is comes first"
