"""What the conformance kit tries the hub on: a server that speaks its protocol, with one small model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmk_testing.hub_server import Repository, serving
from llmk_testing.model_sources import SourceExample, toy_checkpoint


@contextmanager
def served(folder: Path) -> Iterator[SourceExample]:
    """A server with the model ``acme/toy``, and a cache."""
    with serving({"acme/toy": Repository({"main": toy_checkpoint()})}) as server:
        options = {"endpoint": server.url, "cache": str(folder / "hub")}

        def publish(files: Mapping[str, bytes]) -> None:
            server.repositories["acme/toy"] = Repository({"main": dict(files)})

        yield SourceExample("acme/toy", "acme/tow", options, publish=publish, away=server.end)
