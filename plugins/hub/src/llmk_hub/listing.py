"""What a repository has at a revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from huggingface_hub import HfApi

from llmk_hub.place import Place
from llmk_hub.reference import Reference

_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """``etag`` names its content: a SHA-256 of large files, a SHA-1 of git of others."""

    size: int
    etag: str
    is_large: bool

    @property
    def sha256(self) -> str:
        """Of large files; empty for others."""
        return self.etag if self.is_large else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a commit, by name."""

    commit: str
    files: Mapping[str, RemoteFile]


def list_files(wanted: Reference, place: Place) -> Listing:
    """Asks the hub. Raises what ``huggingface_hub`` raises."""
    api = HfApi(place.endpoint, token=place.token)
    info = api.model_info(wanted.repository, revision=wanted.branch, files_metadata=True, timeout=_SECONDS)
    files = {
        each.rfilename: RemoteFile(
            each.size or 0, (each.lfs.sha256 if each.lfs else each.blob_id) or "", is_large=bool(each.lfs)
        )
        for each in info.siblings or ()
    }
    return Listing(info.sha or "", files)
