"""The outline of a model: its small files, and weight files of the right length that hold only their headers.

What plans a model reads shapes and sizes, so megabytes stand for gigabytes. The files are sparse.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from llmk.api import CheckpointError
from llmk_hub.files import Needed
from llmk_hub.listing import Listing
from llmk_hub.place import Place
from llmk_hub.reference import Reference

_FIRST = 256 << 10
"""Bytes of a safetensors file that are requested at first: most headers are shorter."""
_LONGEST_HEADER = 100_000_000
_GGUF = 32 << 20
"""Bytes of a GGUF file, whose header does not say how long it is. Published ones have up to 16 MiB."""


def write_outline(
    folder: Path,
    snapshot: Path,
    files: Needed,
    wanted: Reference,
    listing: Listing,
    place: Place,
) -> None:
    """Writes the outline to ``folder``, of what it lacks, with the small files of ``snapshot``.

    Raises what ``huggingface_hub`` raises, and CheckpointError for a header that can't be one.
    """
    for name in files.small:
        _write(folder / name, (snapshot / name).read_bytes())
    absent = [name for name in files.weights if not (folder / name).exists()]

    def fetch(name: str) -> None:
        size = listing.files[name].size
        _write(folder / name, _header(wanted, listing.commit, name, size, place), size)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, absent))


def _header(wanted: Reference, commit: str, name: str, size: int, place: Place) -> bytes:
    def start(length: int) -> bytes:
        return _start(wanted, commit, name, min(length, size), place)

    if name.endswith(".gguf"):
        return start(_GGUF)
    data = start(_FIRST)
    length = 8 + int.from_bytes(data[:8], "little")
    if length > min(_LONGEST_HEADER, size):
        raise CheckpointError(f"{name} of {wanted} has no header of safetensors", hint="the repository is damaged")
    return data[:length] if length <= len(data) else start(length)


def _start(wanted: Reference, commit: str, name: str, length: int, place: Place) -> bytes:
    """The first bytes of a file. A server that knows no ranges sends all of it, of which the rest is not read."""
    url = hf_hub_url(wanted.repository, name, revision=commit, endpoint=place.endpoint)
    headers = {**build_hf_headers(token=place.token), "Range": f"bytes=0-{length - 1}", "Accept-Encoding": "identity"}
    data = b""
    with get_session().stream("GET", url, headers=headers, timeout=30.0) as response:
        hf_raise_for_status(response)
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) >= length:
                break
    return data[:length]


def _write(file: Path, data: bytes, size: int | None = None) -> None:
    """Writes the file whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as stream:
            stream.write(data)
            stream.truncate(size)
        shutil.move(new, file)
    finally:
        new.unlink(missing_ok=True)
