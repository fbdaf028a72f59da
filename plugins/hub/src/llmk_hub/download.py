"""Downloads files into the cache, several at once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from glob import escape
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_url, snapshot_download
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from tqdm.auto import tqdm

from llmk.api import CheckpointError, FetchProgress
from llmk_hub import transfer
from llmk_hub.listing import Listing
from llmk_hub.place import Place
from llmk_hub.reference import Reference
from llmk_hub.transfer import Transfer

_PARALLEL = 8
_POLL = 0.2
_LAST = 12.0
"""Seconds for downloads to notice that they are ended: more than a connection that is silent is waited for."""


def download(wanted: Reference, listing: Listing, names: Sequence[str], place: Place, progress: FetchProgress) -> Path:
    """Downloads the files that the cache lacks; returns the snapshot. Large ones go on where an earlier download ended.

    Raises CheckpointError where they don't fit on the disk, and what ``huggingface_hub`` raises.
    """
    transfers = [_transfer(wanted, listing, name, place) for name in names]
    total = sum(each.size for each in transfers)
    _check_space(wanted, place, total - sum(each.done for each in transfers))
    stop = threading.Event()

    def run() -> str:
        _run_all([each for each in transfers if each.sha256], stop)
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

    return Path(_in_thread(run, stop, lambda: progress(sum(each.done for each in transfers), total)))


def _transfer(wanted: Reference, listing: Listing, name: str, place: Place) -> Transfer:
    file = listing.files[name]
    url = hf_hub_url(wanted.repository, name, revision=listing.commit, endpoint=place.endpoint)
    blob = place.blob(wanted.repository, file.etag)
    return Transfer(url, build_hf_headers(token=place.token), blob, file.size, file.sha256)


def _run_all(transfers: Sequence[Transfer], stop: threading.Event) -> None:
    """Several at once. The first failure ends the others, which keep what they have."""
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="llmk-hub") as pool:
        running = [pool.submit(transfer.run, each, stop) for each in transfers]
        try:
            for each in as_completed(running):
                each.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


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
