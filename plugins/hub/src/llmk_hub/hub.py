"""The hub as a source of models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from pydantic import ValidationError

from llmk.api import ConfigError, FetchedModel, FetchProgress, ModelSourceContext, StoredModel, parse_json
from llmk.api.errors import CheckpointError
from llmk_hub.download import download
from llmk_hub.errors import FAILURES, Unreachable, explained, not_cached
from llmk_hub.files import INDEX, Needed, gguf_models, needed
from llmk_hub.listing import Listing, list_files
from llmk_hub.options import Options
from llmk_hub.outline import write_outline
from llmk_hub.place import Place, lacking
from llmk_hub.reference import Reference, parse

logger = logging.getLogger(__name__)


class Hub:
    """Follows :class:`~llmk.api.ModelSource`. ``place`` is where models come from: by default, as the environment
    says."""

    def __init__(self, context: ModelSourceContext, place: Place | None = None) -> None:
        for library in ("httpx", "httpx2"):  # of huggingface_hub's releases; each logs every request
            logging.getLogger(library).setLevel(logging.WARNING)
        self._outlines = context.cache / "outlines"
        self._place = place or Place.of(_options(context))

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """The snapshot in the cache, or the outline in llmk's own."""
        wanted = parse(reference)
        if wanted is None:
            raise ValueError(f"{reference} does not name a model of the hub")
        if self._place.offline:
            return self._cached(wanted, outline)
        try:
            return self._fetch(wanted, progress, outline)
        except FAILURES as failure:
            error = explained(failure, wanted, self._place)
            if isinstance(error, Unreachable) and (found := self._whole(wanted, outline)):
                logger.warning("%s; the cache has %s, which is used", error.message, found.path)
                return found
            raise error from failure

    def stored(self) -> Iterator[StoredModel]:
        """The snapshots of the cache."""
        for repository in self._place.repositories():
            folder = self._place.folder(repository)
            named = folder / "refs"
            refs = {file.read_text().strip(): str(file.relative_to(named)) for file in _files(named)}
            for snapshot in sorted(each for each in (folder / "snapshots").glob("*") if each.is_dir()):
                revision = refs.get(snapshot.name, snapshot.name)
                yield from _stored(Reference(repository, "" if revision == "main" else revision), snapshot)

    def _fetch(self, wanted: Reference, progress: FetchProgress, outline: bool) -> FetchedModel:
        listing = list_files(wanted, self._place)
        files = needed(str(wanted), listing.files, wanted.choice, lambda: self._index(wanted, listing))
        if absent := [name for name in files.names if name not in listing.files]:
            what = f"the index of {wanted} names {', '.join(absent)}, which the repository does not have"
            raise CheckpointError(what, hint="name another revision, and report it to its authors")
        snapshot = self._place.snapshot(wanted.repository, listing.commit)
        if outline and lacking(snapshot, files.names):
            return _named(self._outline(wanted, listing, files, progress), files, wanted)
        is_there = not lacking(snapshot, files.names)
        if not is_there or self._place.commit(wanted.repository, wanted.branch) != listing.commit:
            snapshot = download(wanted, listing, files.names, self._place, progress)
            if lost := lacking(snapshot, files.names):
                what = f"the download of {wanted} ended without {', '.join(lost)}"
                raise CheckpointError(what, hint="try again; what is there is not downloaded again")
        return _named(snapshot, files, wanted)

    def _outline(self, wanted: Reference, listing: Listing, files: Needed, progress: FetchProgress) -> Path:
        folder = self._outline_of(wanted, listing.commit)
        snapshot = self._place.snapshot(wanted.repository, listing.commit)
        if lacking(snapshot, files.small):
            snapshot = download(wanted, listing, files.small, self._place, progress)
        write_outline(folder, snapshot, files, wanted, listing, self._place)
        return folder

    def _index(self, wanted: Reference, listing: Listing) -> Mapping[str, Any]:
        place = self._place
        name, commit = wanted.repository, listing.commit
        file = hf_hub_download(
            name, INDEX, revision=commit, cache_dir=place.cache, endpoint=place.endpoint, token=place.token
        )
        return _read_index(Path(file))

    def _outline_of(self, wanted: Reference, commit: str) -> Path:
        return self._outlines / wanted.repository.replace("/", "--") / commit

    def _cached(self, wanted: Reference, outline: bool) -> FetchedModel:
        """The model without a network. Raises ModelNotFound."""
        if found := self._whole(wanted, outline):
            return found
        commit = self._place.commit(wanted.repository, wanted.branch)
        snapshot = self._place.snapshot(wanted.repository, commit)
        if not commit or not snapshot.is_dir():
            raise not_cached(wanted, self._place, f"does not have {wanted}")
        files = _needed_of(wanted, snapshot)
        gone = ", ".join(lacking(snapshot, files.names)) if files else "weights"
        raise not_cached(wanted, self._place, f"has {wanted} only in part, without {gone}")

    def _whole(self, wanted: Reference, outline: bool) -> FetchedModel | None:
        """The model, if all that is needed of it is on this machine."""
        commit = self._place.commit(wanted.repository, wanted.branch)
        if not commit:
            return None
        folders = [self._place.snapshot(wanted.repository, commit)]
        if outline:
            folders.append(self._outline_of(wanted, commit))
        for folder in folders:
            files = _needed_of(wanted, folder)
            if files and not lacking(folder, files.names):
                return _named(folder, files, wanted)
        return None


def _options(context: ModelSourceContext) -> Options:
    try:
        return Options.model_validate(dict(context.options))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        known = ", ".join(Options.model_fields)
        raise ConfigError(f"[plugin.hub] has {wrong}", hint=f"its options are {known}") from error


def _named(folder: Path, files: Needed, wanted: Reference) -> FetchedModel:
    return FetchedModel(folder / files.file if files.file else folder, wanted.repository)


def _needed_of(wanted: Reference, folder: Path) -> Needed | None:
    """The files that a folder needs, as far as it shows; ``None`` if it has no weights, or no file that is chosen."""
    names = [str(file.relative_to(folder)) for file in _files(folder)]
    try:
        return needed(str(wanted), names, wanted.choice, lambda: _read_index(folder / INDEX))
    except CheckpointError:
        return None


def _stored(wanted: Reference, snapshot: Path) -> Iterator[StoredModel]:
    files = _files(snapshot)
    names = [str(file.relative_to(snapshot)) for file in files]
    if "config.json" in names:
        found = _needed_of(wanted, snapshot)
        whole = found is not None and not lacking(snapshot, found.names)
        size = sum(file.stat().st_size for file in files)
        yield StoredModel(str(wanted), snapshot.name, snapshot, size, whole)
        return
    for name, parts in gguf_models(names).items():
        there = [snapshot / part for part in parts if part in names]
        size = sum(file.stat().st_size for file in there)
        yield StoredModel(f"{wanted}:{name}", snapshot.name, snapshot / parts[0], size, len(there) == len(parts))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _read_index(file: Path) -> Mapping[str, Any]:
    """The index of weights; an empty one if it can't be read, which the checkpoint's reader reports by name."""
    try:
        found = parse_json(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
