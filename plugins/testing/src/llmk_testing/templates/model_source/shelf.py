"""Copies models from a shared folder to this machine, once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from llmk.api import (
    CheckpointError,
    ConfigError,
    FetchedModel,
    FetchProgress,
    ModelNotFound,
    ModelSourceContext,
    StoredModel,
)

from .specs import PREFIX, Options

CHUNK = 1 << 24


class Shelf:
    """Follows ``llmk.api.ModelSource``."""

    def __init__(self, context: ModelSourceContext) -> None:
        """``options`` are as the user wrote them: the source is made before llmk validates them."""
        try:
            self._shelf = Path(Options.model_validate(dict(context.options)).shelf)
        except ValidationError as error:
            raise ConfigError(
                f"[plugin.acme] has {error}", hint=f"its options are {', '.join(Options.model_fields)}"
            ) from error
        self._cache = context.cache / "models"

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """Copies into a folder of its own, which gets its name when all is there: a copy that is interrupted is never
        taken for a model, and two that copy at once don't meet. The name is that of what the shelf has now, so a model
        that is put there again is copied again. ``outline`` would allow less; a share is quick."""
        name = reference.removeprefix(PREFIX)
        source = self._shelf / name
        if not self._shelf.is_dir():
            what = f"{reference} can't be had: there is no folder {self._shelf}"
            raise CheckpointError(what, hint="mount it, or set [plugin.acme] shelf")
        if not source.is_dir():
            raise self._absent(reference, name)
        target = self._cache / name / _revision(source)
        if target.is_dir():
            return FetchedModel(target, name)
        self._cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".copying-", dir=self._cache) as folder:
            copy = Path(folder, name)
            _copy(source, copy, progress)
            target.parent.mkdir(exist_ok=True)
            try:
                os.rename(copy, target)
            except OSError:
                if not target.is_dir():  # otherwise another process was quicker
                    raise
        return FetchedModel(target, name)

    def stored(self) -> Iterator[StoredModel]:
        """What was copied."""
        for folder in sorted(self._cache.glob("[!.]*/*")):
            size = sum(file.stat().st_size for file in _files(folder))
            yield StoredModel(f"{PREFIX}{folder.parent.name}", folder.name, folder, size)

    def _absent(self, reference: str, name: str) -> ModelNotFound:
        """Names the model, what there is, and what to do."""
        names = sorted(each.name for each in self._shelf.glob("*") if each.is_dir())
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {PREFIX}{near[0]}?" if near else f"it has {', '.join(names[:12]) or 'none'}"
        return ModelNotFound(f"{self._shelf} has no model {reference}", hint=hint)


def _copy(source: Path, target: Path, progress: FetchProgress) -> None:
    files = _files(source)
    done, total = 0, sum(file.stat().st_size for file in files)
    for file in files:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as reading, place.open("wb") as writing:
            while chunk := reading.read(CHUNK):
                progress(done, total)
                writing.write(chunk)
                done += len(chunk)
        shutil.copystat(file, place)
    progress(done, total)


def _revision(source: Path) -> str:
    """Another one for other files."""
    facts = [(str(file.relative_to(source)), file.stat().st_size, file.stat().st_mtime_ns) for file in _files(source)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())
