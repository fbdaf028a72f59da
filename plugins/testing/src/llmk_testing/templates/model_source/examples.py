"""Examples for the conformance kit: a shelf with one model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmk_testing.model_sources import SourceExample, toy_checkpoint


@contextmanager
def filled(folder: Path) -> Iterator[SourceExample]:
    """Puts the model onto the shelf; the kit removes the folder."""

    def publish(files: Mapping[str, bytes]) -> None:
        """In place of the model that is there."""
        places = {folder / "toy" / name: data for name, data in files.items()}
        if not all((folder / "toy").resolve() in place.resolve().parents for place in places):
            raise ValueError("a file is not in the model's folder")
        shutil.rmtree(folder / "toy", ignore_errors=True)
        for place, data in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def away() -> None:
        """As a share that is not mounted."""
        folder.rename(folder.with_name("unmounted"))

    publish(toy_checkpoint())
    yield SourceExample("acme:toy", "acme:tow", {"shelf": str(folder)}, publish=publish, away=away)
