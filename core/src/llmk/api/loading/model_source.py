"""Sources of models: what gets a model that is named, rather than given as a folder, onto this machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llmk.api.specs import CheckedSpec
from llmk.api.verdict import Verdict

FetchProgress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes that are needed, as often as a source likes, from the thread that
called :meth:`ModelSource.fetch`."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model on this machine: ``path`` is a checkpoint folder, or a file of a format of checkpoints. ``name`` is what
    it is served as, unless the configuration says otherwise."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that a source has on this machine. ``reference`` names it to llmk; ``path`` is as in
    :class:`FetchedModel`, ``num_bytes`` the size of its files there. ``is_complete``: no download of it is unfinished.

    ``revision`` is which version of the model is there, as the source names versions (a commit, a tag, a digest): it is
    human-readable, and differs between what is stored under one reference; ``""`` where there is no other. A version
    that users can request is a part of ``reference``, too.
    """

    reference: str
    revision: str
    path: Path
    num_bytes: int
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class ModelSourceContext:
    """The constructor argument of a source. ``options`` is the plugin's own section of the configuration, as the user
    wrote it: a source that is made with an unknown option, or a value that can't be, raises
    :class:`~llmk.api.ConfigError`, whose message names the option. ``cache`` is a folder of its own in llmk's cache,
    which may not exist yet.
    """

    cache: Path
    options: Mapping[str, Any] = field(default_factory=dict)


class ModelSource(Protocol):
    """Gets models onto this machine, and knows those that it has. Torch is not needed.

    Both methods may raise :class:`~llmk.api.LlmkError`, which names the model and says what to do: there is no such
    model (:class:`~llmk.api.ModelNotFound`), or it can't be fetched, as it is damaged, has no files or its source is
    away (:class:`~llmk.api.CheckpointError`). Several processes and threads may call them at once, and one that is
    killed leaves nothing that others wait for or take for a model.
    """

    def __init__(self, context: ModelSourceContext) -> None: ...

    @abstractmethod
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """The model that ``reference`` names, downloaded where it is not there yet: with all files that llmk reads, in
        their folders, and none outside of the model's. What is published again under its name is fetched, with the
        files that it has now. A KeyboardInterrupt ends it soon; what it left is not taken for a model.

        ``outline``: only metadata is needed. The source may then return a folder whose weight files are as long as the
        real ones, but hold nothing behind their headers. It must not be returned later as the whole model.
        """
        ...

    @abstractmethod
    def stored(self) -> Iterable[StoredModel]:
        """The models on this machine, whole or not, but no outlines, which can't be served. Nothing is downloaded, and
        the source may be away. ``fetch`` of a listed reference returns its path."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSourceSpec(CheckedSpec):
    """A source of models.

    ``claims`` returns whether a reference, which names no folder or file here, has the form of this source's names; it
    looks at nothing but the text. ``implementation`` names a class that implements :class:`~llmk.api.ModelSource`.
    """

    id: str
    name: str
    claims: Callable[[str], Verdict]
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of an ``llmk_testing.model_sources.SourceExample``: what the conformance kit tries it
    on."""
    overrides: str = ""
    summary: str = ""
