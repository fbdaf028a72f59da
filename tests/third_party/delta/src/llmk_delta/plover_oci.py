"""Gets models from an OCI registry, into which ``oras push`` or a pipeline put them: a layer for each file.

A model is named ``oci:REPOSITORY``, with ``:TAG`` (``:latest``) or ``@sha256:DIGEST`` behind it; where it has both, the
digest decides. The title of a layer (``org.opencontainers.image.title``) is the file's name. All that is fetched is
compared with its digest.

What is stored is named by the digest of its manifest, below the registry and the repository::

    REGISTRY/REPOSITORY/DIGEST/         the model's files
    REGISTRY/REPOSITORY/DIGEST.json     its manifest, once all of them are there
    REGISTRY/REPOSITORY/DIGEST.outline/ files with the headers of its weights alone
    REGISTRY/REPOSITORY/tags/TAG        the digest that the tag had when it was fetched
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from llmk.api import (
    CheckpointError,
    FetchedModel,
    FetchProgress,
    ModelNotFound,
    ModelSourceContext,
    StoredModel,
    parse_json,
)

from .plover_options import parse_options
from .plover_specs import OCI_PREFIX, parse_oci

MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
TITLE = "org.opencontainers.image.title"
HEX = re.compile(r"[0-9a-f]{64}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LONGEST_MANIFEST = 4 << 20
LONGEST_HEADER = 256 << 20
CHUNK = 1 << 20
SECONDS = 30


@dataclass(frozen=True, slots=True)
class Layer:
    """A file of a model."""

    name: str
    digest: str
    size: int


class Registry:
    """Follows ``llmk.api.ModelSource``."""

    def __init__(self, context: ModelSourceContext) -> None:
        """Reaches nothing yet."""
        self._address = parse_options(context.options).registry
        self._cache = context.cache / quote(self._address, safe="")

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """Asks the registry which manifest a tag has now; a digest that is stored needs no registry."""
        found = parse_oci(reference)
        if found is None:
            raise ModelNotFound(f"{reference} names no model of a registry", hint=f"write {OCI_PREFIX}REPOSITORY:TAG")
        repository, tag, digest = found
        home, name = self._cache / quote(repository, safe=""), reference.removeprefix(OCI_PREFIX)
        kept = digest.removeprefix("sha256:") or _read(home / "tags" / tag)
        if digest and _is_complete(home, kept):
            return FetchedModel(home / kept, name)
        try:
            manifest = self._manifest(reference, repository, digest or tag)
            number = hashlib.sha256(manifest).hexdigest()
            if digest and digest != f"sha256:{number}":
                raise CheckpointError(f"{self._address} sent another manifest for {reference}", hint="try it again")
            layers = _layers(reference, manifest)
            if outline and not _is_complete(home, number):
                return FetchedModel(self._outline(reference, repository, home / f"{number}.outline", layers), name)
            with _locked(home / f"{number}.lock"):
                if not _is_complete(home, number):
                    self._download(reference, repository, home / number, layers, progress)
                    _replace(home, f"{number}.json", manifest)
            if not digest:
                _replace(home, f"tags/{tag}", number.encode())
        except (OSError, HTTPException) as error:
            if _is_away(error) and _is_complete(home, kept):
                return FetchedModel(home / kept, name)
            what = f"{reference} can't be fetched from {self._address}: {error}"
            raise CheckpointError(what, hint="check the registry, the disk, and [plugin.plover] registry") from error
        return FetchedModel(home / number, name)

    def stored(self) -> Iterator[StoredModel]:
        """What is here, by its tags where it has some, else by its digest."""
        for home in sorted(self._cache.glob("*")):
            tags = {tag.name: _read(tag) for tag in sorted(home.glob("tags/*"))}
            for folder in sorted(each for each in home.iterdir() if HEX.fullmatch(each.name)):
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                suffixes = [f":{tag}" for tag, number in tags.items() if number == folder.name]
                for suffix in suffixes or [f"@sha256:{folder.name}"]:
                    reference = f"{OCI_PREFIX}{unquote(home.name)}{suffix}"
                    is_complete = _is_complete(home, folder.name)
                    yield StoredModel(reference, f"sha256:{folder.name}", folder, size, is_complete)

    def _manifest(self, reference: str, repository: str, version: str) -> bytes:
        try:
            with self._get(f"{repository}/manifests/{version}", {"Accept": ", ".join(MANIFESTS)}) as response:
                return response.read(LONGEST_MANIFEST)
        except HTTPError as error:
            if error.code != 404:
                raise
        raise ModelNotFound(f"{self._address} has no model {reference}", hint=self._suggest(repository, version))

    def _suggest(self, repository: str, version: str) -> str:
        """What to name instead of a tag that there isn't."""
        try:
            with self._get(f"{repository}/tags/list") as response:
                tags = parse_json(response.read(LONGEST_MANIFEST).decode())["tags"]
            near = get_close_matches(version, tags, n=1) or sorted(tags)[:12]
        except (OSError, HTTPException, ValueError, TypeError, KeyError):
            return "check the repository's name, and [plugin.plover] registry"
        return f"the repository has {', '.join(f'{OCI_PREFIX}{repository}:{tag}' for tag in near) or 'no tags'}"

    def _download(
        self, reference: str, repository: str, folder: Path, layers: list[Layer], progress: FetchProgress
    ) -> None:
        """Puts each file into place once it is whole, so that those of an interrupted download are kept."""
        folder.mkdir(parents=True, exist_ok=True)
        done, total = 0, sum(layer.size for layer in layers)
        for layer in layers:
            target = folder / layer.name
            if not target.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                part = folder.with_name(f"{folder.name}.part")
                report = partial(_report, progress, done, total)
                self._save(reference, repository, layer, part, report)
                os.replace(part, target)
            done += layer.size
            progress(done, total)

    def _save(self, reference: str, repository: str, layer: Layer, file: Path, report: Callable[[int], None]) -> None:
        """Writes a layer to a file, which is what the layer's digest says."""
        seen, size = hashlib.sha256(), 0
        with self._get(f"{repository}/blobs/{layer.digest}") as response, file.open("wb") as target:
            while size <= layer.size and (chunk := response.read(CHUNK)):
                target.write(chunk)
                seen.update(chunk)
                size += len(chunk)
                report(min(size, layer.size))
        if size != layer.size or f"sha256:{seen.hexdigest()}" != layer.digest:
            raise CheckpointError(
                f"{layer.name!a} of {reference} is damaged: its digest is not {layer.digest}",
                hint=f"try it again, or push the model to {self._address} again",
            )

    def _outline(self, reference: str, repository: str, folder: Path, layers: list[Layer]) -> Path:
        """A folder in which safetensors files hold nothing behind their headers."""
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".outline-", dir=folder.parent) as made:
            for layer in layers:
                target = Path(made, "model", layer.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not layer.name.endswith(".safetensors"):
                    self._save(reference, repository, layer, target, lambda size: None)
                    continue
                with self._get(f"{repository}/blobs/{layer.digest}") as response, target.open("wb") as file:
                    length = response.read(8)
                    file.write(length + response.read(min(int.from_bytes(length, "little"), LONGEST_HEADER)))
                    file.truncate(layer.size)
            try:
                os.rename(Path(made, "model"), folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process was quicker
                    raise
        return folder

    def _get(self, path: str, headers: dict[str, str] | None = None) -> HTTPResponse:
        found: HTTPResponse = urlopen(Request(f"{self._address}/v2/{path}", headers=headers or {}), timeout=SECONDS)
        return found


def _report(progress: FetchProgress, done: int, total: int, size: int) -> None:
    """Reports the bytes of a file, behind those of the files before."""
    progress(done + size, total)


def _layers(reference: str, manifest: bytes) -> list[Layer]:
    """The files that a manifest lists. It is data that someone else wrote."""
    wrong = CheckpointError(
        f"the manifest of {reference} is none of a model's files", hint="push the files with `oras push`"
    )
    try:
        listed = parse_json(manifest.decode())["layers"]
        titled = [each for each in listed if TITLE in (each.get("annotations") or {})]
        layers = [Layer(each["annotations"][TITLE], each["digest"], each["size"]) for each in titled]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise wrong from error
    if not layers or not all(_is_layer(each.digest, each.size) for each in layers):
        raise wrong
    names = [layer.name for layer in layers]
    if bad := [name for name in names if not _is_inside(name) or names.count(name) > 1]:
        raise CheckpointError(
            f"{reference} has a file {bad[0]!a}, which is twice in it, or leads out of it",
            hint="don't use this model, or push it with other titles",
        )
    return layers


def _is_layer(digest: Any, size: Any) -> bool:
    return isinstance(digest, str) and bool(DIGEST.fullmatch(digest)) and type(size) is int and size >= 0


def _is_inside(name: Any) -> bool:
    """Whether a file of this name is in the model's folder."""
    return isinstance(name, str) and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def _is_complete(home: Path, number: str) -> bool:
    return bool(number) and (home / f"{number}.json").is_file()


def _is_away(error: Exception) -> bool:
    """Whether the registry didn't answer, or that it can't serve now."""
    return not isinstance(error, HTTPError) or error.code >= 500


def _read(file: Path) -> str:
    """The digest in a file; empty where there is none."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _replace(home: Path, name: str, content: bytes) -> None:
    """Writes a file that others see whole, or not at all."""
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=home, prefix=".writing-", delete=False) as target:
        target.write(content)
    os.replace(target.name, home / name)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One at a time; a process that ends lets go of the lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
