"""Examples for the conformance kit: a shelf with one model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmk_testing.model_sources import SourceExample, toy_checkpoint


@contextmanager
def filled(folder: Path) -> Iterator[SourceExample]:
    """Puts the model onto the shelf; the kit removes the folder."""
    model = folder / "toy"
    model.mkdir()
    for name, data in toy_checkpoint().items():
        (model / name).write_bytes(data)
    yield SourceExample("acme:toy", "acme:tow", {"shelf": str(folder)})
