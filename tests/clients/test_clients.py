"""Client libraries on their default settings against ``llmk serve`` with the demo model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest
from environments import CLIENTS, Client, Unavailable
from pooled_checkpoints import write_embedder
from served import Served

KEY = "sesame"
KEYED = {"LLMK__SERVER__API_KEYS": f'["{KEY}"]'}
LIMIT = 900.0
"""Seconds for a suite, which has some tens of requests; on a loaded machine they take minutes."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("clients") / "log", "--port", "0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An embedding model with a name that clients know, for those with a key."""
    folder = tmp_path_factory.mktemp("embedder")
    checkpoint = str(write_embedder(folder, "qwen3", head_dim=32, tie_word_embeddings=True))
    server = Served(
        folder / "log", checkpoint, "--port", "0", "--served-model-name", "text-embedding-3-small", env=KEYED
    )
    yield server
    server.close()


def _case(client: Client) -> object:
    """That of the official client is run always; of the others a sample, unless all are asked for."""
    return pytest.param(client, id=client.name, marks=[] if client.name == "openai" else [pytest.mark.slow])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("client", [_case(client) for client in CLIENTS])
def test_client(client: Client, served: Served, embedder: Served, installs_all: bool) -> None:
    if client.heavy and not installs_all:
        pytest.skip("its packages take minutes to install; --full runs it")
    try:
        command = client.command()
    except Unavailable as error:
        pytest.skip(str(error))
    own = ("PYTHONPATH", "OPENAI_API_KEY", "OPENAI_BASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"LLMK_URL": served.url, "LLMK_MODEL": served.model, "LLMK_EMBEDDER_URL": embedder.url}
    environment |= {"LLMK_EMBEDDER_KEY": KEY}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(client.name, found["versions"], ", ".join(found["outcomes"]))
    failed = [f"{case}: {why}" for case, why in found["outcomes"].items() if why is not None]
    assert not failed, "\n\n".join([str(found["versions"]), *failed])
    assert found["outcomes"]
