"""The text part of checkpoints that read images too. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmk.tree import Config


def text_part(config: Config, **defaults: Any) -> Config:
    """The config's ``text_config``, with the architecture of the whole; ``defaults`` are values of keys that it leaves
    out. Raises CheckpointError."""
    text = config.values.get("text_config")
    if not isinstance(text, Mapping):
        raise config.refuse("no text_config")
    values = {**defaults, **text, "architectures": [config.architecture]}
    return Config(replace(config.checkpoint, config=values))
