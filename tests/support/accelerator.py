"""The accelerator of ``tests/third_party/accelerator``, built once for its sources and the torch that is installed."""

from __future__ import annotations

import zipfile
from hashlib import sha256
from pathlib import Path

import torch
from filelock import FileLock
from scratch import build_wheels

SOURCE = Path(__file__).resolve().parents[1] / "third_party/accelerator"
"""The distribution's folder."""


def build_accelerator(cache: Path) -> Path:
    """The wheel, from a folder of ``cache`` that is named after what it was built of. Takes half a minute where there
    is none."""
    key = sha256(torch.__version__.encode())
    for file in [SOURCE / "setup.py", SOURCE / "pyproject.toml", *sorted((SOURCE / "csrc").iterdir()), *python_files()]:
        key.update(f"{file.relative_to(SOURCE)}\n".encode() + file.read_bytes())
    return build_wheels({"accelerator": SOURCE}, cache / key.hexdigest()[:16])["accelerator"]


def python_files() -> list[Path]:
    """Those of its package."""
    return sorted((SOURCE / "src").rglob("*.py"))


def unpack(wheel: Path) -> Path:
    """Lays the wheel's files out beside it, once, as an installer does."""
    folder = wheel.parent.parent / "site"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unfinished)
            unfinished.rename(folder)
    return folder
