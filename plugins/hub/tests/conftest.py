from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from llmk.api import ModelSourceContext
from llmk_hub.hub import Hub
from llmk_hub.place import Place
from llmk_testing.hub_server import HubServer, Repository, serving

CONFIG = json.dumps({"architectures": ["ToyForCausalLM"]}).encode()
SMALL = {"config.json": CONFIG, "tokenizer.json": b"{}", "generation_config.json": b"{}", "chat_template.jinja": b"x"}
WEIGHTS = save({"w": np.arange(100_000, dtype=np.float32)})
IGNORED = dict.fromkeys(("README.md", "model.py", "pytorch_model.bin", "onnx/model.onnx"), b"no")
LONG = save({"w": np.zeros(4 << 20, dtype=np.float32)})
TOY = {**SMALL, "model.safetensors": WEIGHTS}


def sharded(**more: bytes) -> dict[str, bytes]:
    """A checkpoint of two files, and an index that names them."""
    parts = {f"model-{i}-of-2.safetensors": save({f"w{i}": np.full(40_000, i, np.float32)}) for i in (1, 2)}
    index = json.dumps({"weight_map": {f"w{i}": name for i, name in enumerate(parts, 1)}}).encode()
    return {**SMALL, **parts, "model.safetensors.index.json": index, **more}


REPOSITORIES = {
    "acme/toy": Repository({"main": {**TOY, **IGNORED}, "v2": TOY}),
    "acme/long": Repository({"main": {**SMALL, "model.safetensors": LONG}}),
    "acme/parts": Repository({"main": sharded()}),
    "acme/pickled": Repository({"main": {**SMALL, "pytorch_model.bin": b"no"}}),
    "acme/adapter": Repository({"main": {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}}),
    "acme/notes": Repository({"main": {"README.md": b"no"}}),
    "acme/quants": Repository(
        {"main": {"toy-Q4_K_M.gguf": b"4", "toy-Q8_0.gguf": b"8", "mmproj-toy.gguf": b"m", "README.md": b"no"}}
    ),
    "acme/split": Repository({"main": {f"toy-F16-0000{i}-of-00002.gguf": b"%d" % i for i in (1, 2)}}),
    "acme/gated": Repository({"main": sharded()}, token="hf_good", gated=True),
    "acme/secret": Repository({"main": {**SMALL, "model.safetensors": WEIGHTS}}, token="hf_good"),
    "acme/vast": Repository({"main": {**SMALL, "model.safetensors": WEIGHTS}}, claimed={"model.safetensors": 1 << 60}),
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serving(REPOSITORIES) as running:
        yield running


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hub]:
    """Makes a source on the server; fields of its place are arguments."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")

    def make(**place: object) -> Hub:
        fields = {"endpoint": server.url, "cache": tmp_path / "hub", **place}
        return Hub(ModelSourceContext(cache=tmp_path / "llmk"), Place(**fields))  # type: ignore[arg-type]

    return make


@pytest.fixture
def environ(server: HubServer, tmp_path: Path) -> dict[str, str]:
    """Variables that name the server as the hub, and folders of the test as caches."""
    own = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": server.url}
    return {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | own


@pytest.fixture
def llmk(environ: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command with the server as its hub."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "llmk", *arguments]
        env = environ | more
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return run
