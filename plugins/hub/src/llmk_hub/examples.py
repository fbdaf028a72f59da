"""What the conformance kit tries the hub on: a server that speaks its protocol, with one small model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmk_testing.hub_server import Repository, serving
from llmk_testing.model_sources import SourceExample, toy_checkpoint


@contextmanager
def served(folder: Path) -> Iterator[SourceExample]:
    """A server with the model ``acme/toy``, and a cache."""
    with serving({"acme/toy": Repository({"main": toy_checkpoint()})}) as server:
        options = {"endpoint": server.url, "cache": str(folder / "hub")}

        def again() -> dict[str, bytes]:
            files = toy_checkpoint(2_000_000)
            server.repositories["acme/toy"] = Repository({"main": files})
            return files

        yield SourceExample("acme/toy", "acme/tow", options, again=again)
