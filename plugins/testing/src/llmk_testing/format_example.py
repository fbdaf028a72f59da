"""What the conformance kit tries formats of checkpoints on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FormatExample:
    """A file of the format, and what it means.

    ``tensors`` are dtype (safetensors' name), shape and bytes, by name; the bytes of those that are decoded are empty,
    and not compared. ``damaged`` are files that must be refused, by what is wrong with them.
    """

    file: bytes
    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[str, Sequence[int], bytes]]
    tokenizer: str
    damaged: Mapping[str, bytes] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
