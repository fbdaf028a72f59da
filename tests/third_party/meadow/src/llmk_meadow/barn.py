"""A model source: ``barn:NAME`` and ``barn:NAME@VERSION``, tar archives in a folder.

The folder's ``index.json`` says what there is: ``{"NAME": [{"version": …, "file": …, "sha256": …}, …]}``, the latest
version last. An archive holds the files of one checkpoint. It is unpacked next to its place, checked, and renamed, so
that what has its name is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from llmk.api import (
    OK,
    CheckpointError,
    FetchedModel,
    FetchProgress,
    ModelNotFound,
    ModelSource,
    ModelSourceContext,
    StoredModel,
    Verdict,
    no,
)
from llmk_meadow.options import read

NAME = re.compile(r"barn:([A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w.-]*))?", re.ASCII)
PIECE = 1 << 20
PARTIAL = ".partial-"


def claims(reference: str) -> Verdict:
    """By its form."""
    return OK if NAME.fullmatch(reference) else no("form", wanted="barn:NAME or barn:NAME@VERSION", found=reference)


@dataclass(frozen=True, slots=True)
class Archive:
    """A version of a model."""

    name: str
    version: str
    path: Path
    sha256: str

    @property
    def title(self) -> str:
        """What it is called."""
        return f"barn:{self.name}@{self.version}"


def folder_size(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class Barn(ModelSource):
    """``cache/whole/NAME@VERSION`` are whole models, ``cache/outline/NAME@VERSION`` those without weights."""

    def __init__(self, context: ModelSourceContext) -> None:
        self._cache = context.cache
        self._barn = read(context.options).barn

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """Unpacked once. An outline is taken from a whole model, where that is there."""
        archive = self._find(reference)
        label = f"{archive.name}@{archive.version}"
        whole = self._cache / "whole" / label
        place = self._cache / "outline" / label if outline and not whole.is_dir() else whole
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.parent / f".lock-{label}"):
            if place.is_dir():
                size = archive.path.stat().st_size if archive.path.is_file() else folder_size(place)
                progress(size, size)
            else:
                self._unpack(archive, place, progress, outline)
        return FetchedModel(place, archive.name)

    def stored(self) -> Iterable[StoredModel]:
        """Whole models, and what an ended process left of one."""
        whole = self._cache / "whole"
        for folder in sorted(whole.iterdir()) if whole.is_dir() else ():
            if not folder.is_dir():
                continue
            label = folder.name.removeprefix(PARTIAL).partition("+")[0]
            yield StoredModel(
                f"barn:{label}",
                label.partition("@")[2],
                folder,
                folder_size(folder),
                is_complete=not folder.name.startswith(PARTIAL),
            )

    def _find(self, reference: str) -> Archive:
        found = NAME.fullmatch(reference)
        if not found or not self._barn:
            why = "set plugin.meadow.barn to the folder of archives" if found else "name it as barn:NAME@VERSION"
            raise ModelNotFound(f"there is no model {reference}", hint=why)
        index = self._index(reference)
        versions = index.get(found[1], [])
        wanted = [each for each in versions if found[2] in (None, each["version"])]
        if not wanted:
            there = [f"barn:{name}@{each['version']}" for name, all in index.items() for each in all]
            raise ModelNotFound(
                f"{self._barn} has no model {reference}", hint=f"it has {', '.join(sorted(there)) or 'none'}"
            )
        entry = wanted[-1]
        return Archive(found[1], entry["version"], Path(self._barn) / entry["file"], entry["sha256"])

    def _index(self, reference: str) -> dict[str, list[dict[str, str]]]:
        path = Path(self._barn) / "index.json"
        try:
            index: Any = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            message = f"{reference} can't be had: {path} can't be read: {error}"
            raise CheckpointError(message, hint="set plugin.meadow.barn to a barn") from None
        return dict(index)

    def _unpack(self, archive: Archive, place: Path, progress: FetchProgress, outline: bool) -> None:
        beside = Path(tempfile.mkdtemp(prefix=f"{PARTIAL}{place.name}+", dir=place.parent))
        try:
            with archive.path.open("rb") as stream:
                if not outline:
                    self._check(archive, stream)
                unpack(archive, stream, beside, progress, outline=outline)
            if not any(beside.iterdir()):
                raise CheckpointError(f"{archive.title} has no files", hint=f"put the model's into {archive.path}")
            beside.rename(place)
        except (OSError, tarfile.TarError) as error:
            raise CheckpointError(
                f"{archive.title} can't be unpacked from {archive.path}: {error}", hint="copy the archive again"
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _check(self, archive: Archive, stream: IO[bytes]) -> None:
        digest = hashlib.sha256()
        while piece := stream.read(PIECE):
            digest.update(piece)
        stream.seek(0)
        if digest.hexdigest() != archive.sha256.lower():
            raise CheckpointError(
                f"{archive.title} is damaged: {archive.path} has another checksum than the index says",
                hint="copy the archive again",
            )


def unpack(archive: Archive, stream: IO[bytes], folder: Path, progress: FetchProgress, *, outline: bool) -> None:
    """Writes the files of an archive into a folder. Of weights, an outline has the headers alone."""
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        members = [member for member in tar.getmembers() if not member.isdir()]
        total, there = sum(member.size for member in members), 0
        progress(0, total)
        for member in members:
            place = PurePosixPath(member.name)
            data = tar.extractfile(member) if member.isreg() else None
            if data is None or place.is_absolute() or ".." in place.parts:
                raise CheckpointError(
                    f"{archive.title} has {member.name!a}, which is no file in its folder", hint="pack it again"
                )
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                left = member.size
                if outline and place.suffix == ".safetensors":
                    left = min(left, header_size(data))
                there += member.size - left
                while left > 0 and (piece := data.read(min(left, PIECE))):
                    out.write(piece)
                    left -= len(piece)
                    there += len(piece)
                    progress(there, total)
                out.truncate(member.size)
        progress(total, total)


def header_size(data: IO[bytes]) -> int:
    """Bytes of a safetensors file in front of its tensors."""
    size = 8 + int.from_bytes(data.read(8), "little")
    data.seek(0)
    return size


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process, and one thread, at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
