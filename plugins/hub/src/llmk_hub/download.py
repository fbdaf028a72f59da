"""Downloads files into the cache, several at once. Connections that break are taken up where they broke."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]
from tqdm.auto import tqdm

from llmk.api import CheckpointError, FetchProgress
from llmk_hub.listing import Listing
from llmk_hub.place import Place
from llmk_hub.reference import Reference

logger = logging.getLogger(__name__)

_TRIES, _PAUSE = 5, 1.0
"""The library takes up streams that end too early, but not those that are reset."""
_POLL = 0.2
_LAST = 12.0
"""Seconds for downloads to notice that they are ended: more than the library waits for a connection that is silent."""


def download(wanted: Reference, listing: Listing, names: Sequence[str], place: Place, progress: FetchProgress) -> Path:
    """Downloads the files that the cache lacks; returns the snapshot.

    Raises CheckpointError where they don't fit on the disk, and what ``huggingface_hub`` raises.
    """
    blobs = {place.blob(wanted.repository, listing.files[name].etag): listing.files[name].size for name in names}
    total, before = sum(blobs.values()), _done(blobs)
    _check_space(wanted, place, total - before)
    stop = threading.Event()

    def run_once() -> str:
        found: str = snapshot_download(
            wanted.repository,
            revision=wanted.branch,
            cache_dir=place.cache,
            endpoint=place.endpoint,
            token=place.token,
            allow_patterns=[escape(name) for name in names],
            tqdm_class=_stopped_by(stop),
        )
        return found

    def run() -> str:
        for _ in range(_TRIES - 1):
            try:
                return run_once()
            except HTTPError as error:
                if isinstance(error, HfHubHTTPError) or stop.wait(_PAUSE):
                    raise
                logger.warning("%s: the connection broke (%s); trying again", wanted, error)
        return run_once()

    partial = sorted(_partial(place, wanted.repository))
    return Path(
        _in_thread(run, stop, lambda: progress(_done(blobs, _growing(place, wanted.repository, partial)), total))
    )


def _in_thread(run: Callable[[], str], stop: threading.Event, poll: Callable[[], None]) -> str:
    """Runs it in a thread that does not outlive an interrupt of this one, which polls."""
    result: list[str] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(run())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, name="llmk-hub", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            poll()
            thread.join(_POLL)
        poll()
    except BaseException:
        stop.set()
        thread.join(_LAST)
        raise
    if failure:
        raise failure[0]
    return result[0]


def _stopped_by(stop: threading.Event) -> type[tqdm[Any]]:
    """A bar that shows nothing, and ends the download that updates it once it is to stop."""

    class Quiet(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that watches bars

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if stop.is_set():
                raise InterruptedError("the download is stopped")
            shown: bool | None = super().update(n)
            return shown

    return Quiet


def _check_space(wanted: Reference, place: Place, missing: int) -> None:
    folder = place.cache
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise CheckpointError(
            f"{wanted} takes {missing / 1e9:.1f} GB more, and {place.cache} has {free / 1e9:.1f} GB free",
            hint="free some (hf cache list, hf cache rm), or keep models elsewhere: HF_HUB_CACHE=FOLDER",
        )


def _done(blobs: dict[Path, int], growing: int = 0) -> int:
    whole = sum(size for blob, size in blobs.items() if blob.exists())
    return min(whole + growing, sum(blobs.values()))


def _partial(place: Place, repository: str) -> list[Path]:
    return list((place.folder(repository) / "blobs").glob("*.incomplete"))


def _growing(place: Place, repository: str, before: Sequence[Path]) -> int:
    """Bytes of files that are being downloaded, without what other downloads left."""
    sizes = 0
    for file in set(_partial(place, repository)) - set(before):
        try:
            sizes += file.stat().st_size
        except FileNotFoundError:  # it is whole now
            continue
    return sizes
