"""Copies checkpoints with changed tensors or config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, by name."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def copied(
    source: Path,
    target: Path,
    change: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Copies ``source`` to ``target``, with one file for the tensors, which ``change`` modifies in place, and with
    ``config`` added to its config."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name != INDEX:
            shutil.copy(file, target)
    tensors = tensors_of(source)
    change(tensors)
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, target / "model.safetensors", {"format": "pt"}
    )
    if config:
        settings = json.loads((source / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**settings, **config}))
    return target


def rounded_to(source: Path, target: Path, dtype: torch.dtype) -> Path:
    """A copy with all floating-point tensors in ``dtype``."""

    def change(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.to(dtype)

    name = str(dtype).removeprefix("torch.")
    return copied(source, target, change, {"dtype": name, "torch_dtype": name})
