"""Downloads one large file into the cache, from where an earlier download of it ended.

``huggingface_hub`` removes what it has of a file when its process ends or a connection is reset. So here a file grows
under a name of its own next to the others, which outlives both, and becomes the blob when its SHA-256 is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

_TRIES = 5
"""How often in a row a connection may break without a byte."""
_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_SILENCE = 10.0
"""Seconds without a byte after which a connection counts as broken."""
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Transfer:
    """``headers`` have the token; other hosts, to which the hub redirects, do not get it."""

    url: str
    headers: Mapping[str, str]
    blob: Path
    size: int
    sha256: str

    @property
    def partial(self) -> Path:
        """What there is of the file until it is whole."""
        return self.blob.with_name(f"{self.blob.name}.incomplete")

    @property
    def done(self) -> int:
        """Bytes that are there."""
        for file in (self.blob, self.partial):
            with suppress(FileNotFoundError):
                return min(file.stat().st_size, self.size)
        return 0


def run(transfer: Transfer, stop: threading.Event) -> None:
    """Downloads what is missing; returns when the blob is there. Another process that downloads it is waited for.

    Raises InterruptedError once ``stop`` is set, OSError if the file can't be written or is not what it is named by,
    and what ``huggingface_hub`` raises.
    """
    transfer.blob.parent.mkdir(parents=True, exist_ok=True)
    while not transfer.blob.exists():
        with transfer.partial.open("ab+", buffering=0) as file:
            if not _locked(file) or not _is(file, transfer.partial):
                _wait(stop, _PAUSE)
                continue
            _complete(transfer, file, stop)
            os.replace(transfer.partial, transfer.blob)


def _complete(transfer: Transfer, file: FileIO, stop: threading.Event) -> None:
    """Fetches the rest of the file. A file that was wrong before this process added to it is fetched once more."""
    was_there = _end(file)
    _fetch(transfer, file, stop)
    if was_there and _digest(file) != transfer.sha256:
        logger.warning("%s is damaged; it is downloaded again", transfer.partial)
        file.truncate(0)
        _fetch(transfer, file, stop)
    if _digest(file) != transfer.sha256:
        file.truncate(0)
        raise OSError(f"{transfer.url} has other bytes than its repository lists")


def _fetch(transfer: Transfer, file: FileIO, stop: threading.Event) -> None:
    """Fetches until the file has its size. Gives up when several tries in a row had no byte."""
    failures = 0
    while (at := _end(file)) != transfer.size:
        try:
            _receive(transfer, file, at if at < transfer.size else 0, stop)
        except HTTPError as error:
            failures = 0 if _end(file) > at else failures + 1
            if failures == _TRIES or not _passes(error):
                raise
            logger.warning("%s: the connection broke (%s); trying again", transfer.url, error)
            _wait(stop, _pause(error))


def _receive(transfer: Transfer, file: FileIO, start: int, stop: threading.Event) -> None:
    """Appends what one request returns. A server that knows no ranges sends the whole file, which then replaces it."""
    ask = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    headers = {**transfer.headers, **ask}
    with get_session().stream("GET", transfer.url, headers=headers, timeout=_SILENCE) as response:
        hf_raise_for_status(response)
        file.truncate(start if response.status_code == 206 else 0)
        for chunk in response.iter_bytes():
            if stop.is_set():
                raise InterruptedError("the download is stopped")
            _write(file, chunk)
            if _end(file) > transfer.size:
                return
    if _end(file) < transfer.size:
        raise HTTPError("it ended early")


def _passes(error: HTTPError) -> bool:
    """Whether it may be otherwise at the next try."""
    return not isinstance(error, HfHubHTTPError) or error.response.status_code in _AGAIN


def _pause(error: HTTPError) -> float:
    """Seconds to wait after a failure: the server's Retry-After, within limits."""
    asked = error.response.headers.get("Retry-After", "") if isinstance(error, HfHubHTTPError) else ""
    return min(float(asked), _LONGEST_PAUSE) if asked.isdigit() else _PAUSE


def _wait(stop: threading.Event, seconds: float) -> None:
    if stop.wait(seconds):
        raise InterruptedError("the download is stopped")


def _locked(file: FileIO) -> bool:
    """Takes the file for this process, until it is closed; whether no other has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is(file: FileIO, path: Path) -> bool:
    """Whether the path still leads to the file: another process may have made it the blob meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _digest(file: FileIO) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _write(file: FileIO, data: bytes) -> None:
    """All of it: a raw file may take less at once."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _end(file: FileIO) -> int:
    return file.seek(0, os.SEEK_END)
