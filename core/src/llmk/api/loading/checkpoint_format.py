"""Formats of checkpoints other than Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmk.api.checkpoint import Checkpoint, CheckpointFile
from llmk.api.specs import CheckedSpec
from llmk.api.verdict import Verdict


class ReadCheckpoint(Protocol):
    """Reads the metadata of a checkpoint of a format. No tensor is loaded, and torch is not needed."""

    def __call__(self, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint, in the terms of a Hugging Face folder, with a ``reader``.

        Args:
            files: the file that the user named, or all files of the format in the folder that the user named, sorted
                by name.
            options: the plugin's own section of the configuration, as the user wrote it.

        Raises:
            CheckpointError: the files are damaged, belong to several checkpoints, or have something that the format's
                reader can't read, such as a newer version or an unknown encoding. The message names the file and what
                it has, the hint what to do.
            ConfigError: ``options`` has one that there is not, or a wrong value. The message names it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormatSpec(CheckedSpec):
    """A format of checkpoints.

    ``claims`` returns whether a file has the format. It looks at the first bytes, since names say little. It is called
    for the file that the user names, or for the files of a folder without ``config.json``. ``implementation`` names a
    function that implements :class:`~llmk.api.ReadCheckpoint`.
    """

    id: str
    name: str
    claims: Callable[[CheckpointFile], Verdict]
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of an ``llmk_testing.format_example.FormatExample``: what the conformance kit tries it
    on."""
    overrides: str = ""
    summary: str = ""
