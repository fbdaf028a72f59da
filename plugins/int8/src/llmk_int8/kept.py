"""Rounded weights that are kept in files, so that they are mapped at the next start, and shared between processes."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llmk.api import Checkpoint
from llmk_int8.rounding import Parts

VARIABLE = "LLMK_INT8_CACHE"
"""Environment variable that names another folder; empty: nothing is kept."""
LEAST = 1 << 20
"""Weights of a matrix from which on it is kept: others are rounded as fast as files are opened."""
_VERSION = "1"
"""What is kept by other versions is not used."""
_SAMPLED = 64
"""Rows of a matrix by which it is recognised, besides its files, its name and its shape."""

logger = logging.getLogger(__name__)


def folder() -> Path | None:
    """Where files are kept: in the user's cache, unless :data:`VARIABLE` says otherwise."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "llmk", "int8")
    return Path(given) if given else None


def source_of(checkpoint: Checkpoint | None) -> str:
    """What identifies the files of a checkpoint: their names, sizes and times."""
    files = [(file.name, file.path.stat()) for file in checkpoint.weight_files] if checkpoint else []
    return " ".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files)


def kept(layer: str, weight: Tensor, rounded: Callable[[Tensor], Parts], source: str) -> Parts:
    """``rounded(weight)``, from a file where there is one, which is written else. ``source`` is as :func:`source_of`
    says."""
    where = folder() if weight.numel() >= LEAST else None
    if where is None:
        return rounded(weight)
    file = where / f"{_name(f'{rounded.__name__} {layer} {source}', weight)}.safetensors"
    if (found := _read(file)) is not None:
        return found
    parts = rounded(weight)
    _write(file, parts)
    return parts


def _name(about: str, weight: Tensor) -> str:
    """A hash of ``about`` and of the weight: of its values, those of some rows, which keep the shares of several
    processes apart, so that pages of a file that is mapped are not all read."""
    given = f"{_VERSION} {torch.__version__} {about} {tuple(weight.shape)} {weight.dtype}"
    found = blake2b(given.encode(), digest_size=20)
    rows = weight[:: max(1, len(weight) // _SAMPLED)].contiguous()
    found.update(rows.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _read(file: Path) -> Parts | None:
    try:
        return load_file(file)
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError) as error:
        logger.warning("%s can't be read, and is written again: %s", file, error)
        return None


def _write(file: Path, parts: Parts) -> None:
    """Writes the file under another name first, so that no process reads a part of it."""
    temporary = ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent)
        os.close(handle)
        save_file({name: part.contiguous() for name, part in parts.items()}, temporary)
        Path(temporary).replace(file)
    except (SafetensorError, OSError) as error:
        logger.warning("rounded weights can't be kept in %s: %s", file.parent, error)
        if temporary:
            Path(temporary).unlink(missing_ok=True)
