"""Where models come from, and the cache in which they are kept. Its layout is that of ``huggingface_hub``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from llmk.api import ConfigError
from llmk_hub.options import Options

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Place:
    """``token`` is ``None`` for the one that ``HF_TOKEN`` or ``hf auth login`` gives."""

    endpoint: str
    cache: Path
    offline: bool = False
    token: str | None = None

    @classmethod
    def of(cls, options: Options) -> Place:
        """As the options say, else ``HF_ENDPOINT``, ``HF_HUB_CACHE`` or ``HF_HOME``, and ``HF_HUB_OFFLINE``.

        Raises ConfigError for an endpoint that is no URL.
        """
        endpoint = (options.endpoint or constants.ENDPOINT).rstrip("/")
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"{endpoint!r} is no URL of a hub (HF_ENDPOINT, plugin.hub.endpoint)", hint=f"https://{endpoint}?"
            )
        return cls(
            endpoint,
            Path(options.cache or constants.HF_HUB_CACHE).expanduser(),
            options.offline or constants.is_offline_mode(),
        )

    def folder(self, repository: str) -> Path:
        """What the cache has of a repository."""
        return self.cache / f"models--{repository.replace('/', '--')}"

    def snapshot(self, repository: str, commit: str) -> Path:
        """The files of a commit, which are links to blobs."""
        return self.folder(repository) / "snapshots" / commit

    def blob(self, repository: str, etag: str) -> Path:
        """A file's content."""
        return self.folder(repository) / "blobs" / etag

    def commit(self, repository: str, revision: str) -> str:
        """The commit of which the cache last heard for a revision; empty: it never did."""
        if _COMMIT.fullmatch(revision):
            return revision
        file = self.folder(repository) / "refs" / revision
        return file.read_text().strip() if file.is_file() else ""

    def commits(self, repository: str) -> list[str]:
        """The commits of which the cache has files."""
        folders = sorted((self.folder(repository) / "snapshots").glob("*"))
        return [folder.name for folder in folders if _COMMIT.fullmatch(folder.name)]

    def repositories(self) -> list[str]:
        """The names of all repositories of models in the cache."""
        folders = sorted(self.cache.glob("models--*--*"))
        return [folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders]


def lacking(snapshot: Path, names: Iterable[str]) -> list[str]:
    """The files that a snapshot does not have."""
    return [name for name in names if not (snapshot / name).is_file()]
