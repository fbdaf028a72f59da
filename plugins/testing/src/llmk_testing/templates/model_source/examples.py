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

    def publish(name: str, files: Mapping[str, bytes]) -> None:
        """In place of the model that is there under that name."""
        model = folder / name.removeprefix("acme:")
        places = {model / file: data for file, data in files.items()}
        if not all(model.resolve() in place.resolve().parents for place in places):
            raise ValueError("a file is not in the model's folder")
        shutil.rmtree(model, ignore_errors=True)
        for place, data in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def away() -> None:
        """As a share that is not mounted."""
        folder.rename(folder.with_name("unmounted"))

    models = {"acme:toy": toy_checkpoint(), "acme:other": {**toy_checkpoint(), "generation_config.json": b"{}"}}
    for name, files in models.items():
        publish(name, files)
    yield SourceExample("acme:toy", "acme:tow", {"shelf": str(folder)}, models, publish=publish, away=away)
