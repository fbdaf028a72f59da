"""What the conformance kit tries the hub on: a server that speaks its protocol, with one small model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmk_testing.hub_server import Repository, serving
from llmk_testing.model_sources import SourceExample, toy_checkpoint


@contextmanager
def served(folder: Path) -> Iterator[SourceExample]:
    """A server with the model ``acme/toy``, a branch of it and another model, and a cache."""
    toy = toy_checkpoint()
    models = {
        "acme/toy": toy,
        "acme/toy@small": {**toy, "generation_config.json": b'{"top_k": 1}'},
        "acme/toys": {**toy, "generation_config.json": b'{"top_k": 2}'},
    }
    with serving({"acme/toy": Repository({}), "acme/toys": Repository({})}) as server:
        options = {"endpoint": server.url, "cache": str(folder / "hub")}

        def publish(name: str, files: Mapping[str, bytes]) -> None:
            repository, _, revision = name.partition("@")
            revisions = server.repositories[repository].revisions
            server.repositories[repository] = Repository({**revisions, revision or "main": dict(files)})

        for name, files in models.items():
            publish(name, files)
        yield SourceExample("acme/toy", "acme/tow", options, models, publish=publish, away=server.end)
