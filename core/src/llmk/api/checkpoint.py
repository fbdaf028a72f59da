"""What a checkpoint says of itself, read from its small files only: no tensor is loaded, torch is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmk.api.files import CheckpointFile


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder in the Hugging Face layout.

    ``config``, ``generation_config`` and ``tokenizer_config`` are the parsed JSON files (empty where a file is absent).
    ``weight_files`` are the safetensors files, naturally sorted. ``weight_bytes``
    is the sum of their sizes on disk. Whatever else is read of the folder, :meth:`file` opens.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    weight_files: tuple[CheckpointFile, ...] = ()
    weight_bytes: int = 0

    @property
    def architecture(self) -> str:
        """The first of ``config["architectures"]``, or ``""``."""
        architectures = self.config.get("architectures") or [""]
        return str(architectures[0])

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The embedded quantization config, empty where the checkpoint has none."""
        return self.config.get("quantization_config") or {}

    def file(self, name: str) -> CheckpointFile:
        """A file of the folder, by its name there."""
        return CheckpointFile(self.path, name)
