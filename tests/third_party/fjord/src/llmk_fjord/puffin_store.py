"""A source of models: a content-addressed folder, copied to this machine model by model.

The store has ``models/NAME/VERSION.json``, whose ``files`` give the ``sha256`` and ``size`` of each file by its name,
and ``blobs/FIRST-TWO-DIGITS/SHA256``. A name without a version means the last one in natural order.

In the cache, ``models/NAME@VERSION/DIGEST`` is a whole model, ``outlines/...`` an outline, and ``parts/...`` what is
being copied. ``DIGEST`` is of the manifest, so a version that is published again is another model. A file is checked
by its SHA-256 before it counts, and a folder gets its name when all its files are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pydantic import ValidationError

from llmk.api import (
    CheckpointError,
    CheckpointFile,
    ConfigError,
    FetchedModel,
    FetchProgress,
    ModelNotFound,
    ModelSourceContext,
    StoredModel,
)

from .puffin_specs import NAME, PREFIX, REFERENCE, Options

CHUNK = 1 << 20
LONGEST_HEADER = 100 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Entry:
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class _Manifest:
    name: str
    version: str
    digest: str
    files: Mapping[str, _Entry]

    @property
    def folder(self) -> str:
        return f"{self.name}@{self.version}/{self.digest}"

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())


class Store:
    """Follows ``llmk.api.ModelSource``."""

    def __init__(self, context: ModelSourceContext) -> None:
        """``options`` are not validated yet."""
        try:
            options = Options.model_validate(dict(context.options))
        except ValidationError as error:
            raise ConfigError(
                f"[plugin.puffin] has {error}", hint=f"its options are {', '.join(Options.model_fields)}"
            ) from error
        self._store = Path(options.store).expanduser()
        self._cache = context.cache

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """Copies what is missing. Several that fetch one model at once wait for the first."""
        manifest = self._manifest(reference)
        whole = self._cache / "models" / manifest.folder
        if whole.is_dir():
            return FetchedModel(whole, manifest.name)
        target = self._cache / "outlines" / manifest.folder if outline else whole
        parts = self._cache / ("outline-parts" if outline else "parts") / manifest.folder
        with self._locked(manifest):
            if outline and whole.is_dir():
                target = whole
            if target.is_dir():
                progress(manifest.size, manifest.size)
            else:
                self._copy(reference, manifest, parts, progress, outline)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(parts, target)
            shutil.rmtree(parts.parent, ignore_errors=True)
            if not outline:
                for kind in ("outlines", "outline-parts"):
                    shutil.rmtree(self._cache / kind / manifest.folder, ignore_errors=True)
        return FetchedModel(target, manifest.name)

    def stored(self) -> Iterator[StoredModel]:
        """Whole models, and those of which a part was copied."""
        for kind in ("models", "parts"):
            for folder in sorted((self._cache / kind).glob("*@*/*")):
                name = folder.parent.name
                if REFERENCE.fullmatch(PREFIX + name) and folder.is_dir():
                    yield StoredModel(f"{PREFIX}{name}", folder.name[:12], folder, _size(folder), kind == "models")

    def _manifest(self, reference: str) -> _Manifest:
        match = REFERENCE.fullmatch(reference)
        if not match:
            raise ModelNotFound(
                f"{reference!a} is no name of a model in a store", hint=f"write {PREFIX}NAME or {PREFIX}NAME@VERSION"
            )
        name, version = match.groups()
        if not self._store.is_dir():
            raise CheckpointError(
                f"{reference} can't be had: there is no folder {self._store}",
                hint="mount the store, or say in [plugin.puffin] store where it is",
            )
        versions = self._versions(name)
        if not versions:
            names = sorted(each.name for each in self._store.glob("models/*") if self._versions(each.name))
            near = get_close_matches(name, names, n=1)
            raise ModelNotFound(
                f"{self._store} has no model {reference}",
                hint=f"did you mean {PREFIX}{near[0]}?" if near else f"it has {', '.join(names[:12]) or 'none'}",
            )
        if version is None:
            version = versions[-1]
        if version not in versions:
            raise ModelNotFound(f"{self._store} has no model {reference}", hint=f"it has {', '.join(versions[-12:])}")
        file = CheckpointFile(self._store, f"models/{name}/{version}.json")
        data = file.read_json()
        try:
            files = _checked(data)
        except ValueError as error:
            raise CheckpointError(
                f"{reference} can't be had: {file} {error}", hint="publish this version again"
            ) from error
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
        return _Manifest(name, version, digest, files)

    def _versions(self, name: str) -> list[str]:
        found = (path.name.removesuffix(".json") for path in (self._store / "models" / name).glob("*.json"))
        return sorted((version for version in found if NAME.fullmatch(version)), key=_natural)

    def _copy(self, reference: str, manifest: _Manifest, parts: Path, progress: FetchProgress, outline: bool) -> None:
        """Copies all files into ``parts``, going on where an interrupted copy ended."""
        before, highest, total = 0, 0, manifest.size

        def report(there: int) -> None:
            nonlocal highest
            highest = max(highest, min(before + there, total))
            progress(highest, total)

        parts.mkdir(parents=True, exist_ok=True)
        for name, entry in manifest.files.items():
            blob = CheckpointFile(self._store, f"blobs/{entry.sha256[:2]}/{entry.sha256}")
            place = parts / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with _opened(reference, blob) as reading, place.open("a+b") as writing:
                report(0)
                if os.fstat(reading.fileno()).st_size != entry.size:
                    raise _damaged(reference, blob)
                if outline and name.endswith(".safetensors"):
                    _copy_header(reading, writing, entry.size)
                elif not (_copied(reading, writing, entry, report) or _again(reading, writing, entry, report)):
                    writing.truncate(0)
                    raise _damaged(reference, blob)
                report(entry.size)
            before += entry.size
        progress(total, total)

    @contextmanager
    def _locked(self, manifest: _Manifest) -> Iterator[None]:
        """Held by one process and thread at a time. Waiting for it can be interrupted."""
        folder = self._cache / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{manifest.name}@{manifest.version}").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
            yield


def _copy_header(reading: BinaryIO, writing: BinaryIO, size: int) -> None:
    """The header of a safetensors file, in a file as long as the whole."""
    writing.truncate(0)
    length = reading.read(8)
    if len(length) == 8:
        writing.write(length + reading.read(min(int.from_bytes(length, "little"), LONGEST_HEADER)))
    else:
        writing.write(length)
    writing.flush()
    writing.truncate(size)


def _copied(reading: BinaryIO, writing: BinaryIO, entry: _Entry, report: Callable[[int], None]) -> bool:
    """Adds to what an earlier copy left, and returns whether the whole has the right hash."""
    checked = hashlib.sha256()
    if writing.seek(0, os.SEEK_END) > entry.size:
        writing.truncate(0)
    writing.seek(0)
    while chunk := writing.read(CHUNK):
        checked.update(chunk)
        report(writing.tell())
    reading.seek(writing.tell())
    while chunk := reading.read(CHUNK):
        writing.write(chunk)
        checked.update(chunk)
        report(writing.tell())
    writing.flush()
    os.fsync(writing.fileno())
    return checked.hexdigest() == entry.sha256


def _again(reading: BinaryIO, writing: BinaryIO, entry: _Entry, report: Callable[[int], None]) -> bool:
    """From the first byte, in case that what an earlier copy left was wrong."""
    writing.truncate(0)
    return _copied(reading, writing, entry, report)


def _opened(reference: str, blob: CheckpointFile) -> BinaryIO:
    try:
        return blob.open()
    except CheckpointError as error:
        raise CheckpointError(
            f"{reference} can't be had: {error.message}", hint="publish this version again"
        ) from error


def _size(folder: Path) -> int:
    """Bytes of all files, some of which may just be removed or renamed."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            status = file.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _checked(data: Mapping[str, Any]) -> dict[str, _Entry]:
    """The files of a manifest. Raises ValueError with what is wrong."""
    files = data.get("files")
    if not isinstance(files, dict) or not files:
        raise ValueError("names no files")
    checked = {}
    for name, entry in files.items():
        place = PurePosixPath(name)
        if not name.isprintable() or place.is_absolute() or not place.parts or ".." in place.parts or "\\" in name:
            raise ValueError(f"names a file {name!a}, which is not inside the model")
        if str(place) != name or any(str(parent) in files for parent in place.parents):
            raise ValueError(f"names a file {name!a}, which is also a folder or another name of a file")
        if not isinstance(entry, dict):
            raise ValueError(f"says nothing of the file {name!a}")
        sha256, size = entry.get("sha256"), entry.get("size")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise ValueError(f"has no SHA-256 of the file {name!a}")
        if type(size) is not int or size < 0:
            raise ValueError(f"has no size of the file {name!a}")
        checked[name] = _Entry(sha256, size)
    return checked


def _natural(version: str) -> list[tuple[int, int, str]]:
    """The order of versions: numbers by value, before text."""
    parts = re.findall(r"[0-9]+|[^0-9]+", version)
    return [(0, int(part), part) if part.isdigit() else (1, 0, part) for part in parts]


def _damaged(reference: str, blob: CheckpointFile) -> CheckpointError:
    return CheckpointError(
        f"{reference} can't be had: {blob} is not what its version says", hint="publish this version again"
    )
