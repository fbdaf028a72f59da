"""What the installed torch was built for, read from its files. torch itself is not imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A build of torch: ``hip`` and ``cuda`` are the versions that it needs, ``""`` for a build without."""

    version: str
    hip: str = ""
    cuda: str = ""

    def __str__(self) -> str:
        return f"torch {self.version}" + (f", built with CUDA {self.cuda}" if self.cuda else "")


def installed_torch() -> TorchBuild | None:
    """The build that ``import torch`` would import; ``None`` if torch is not installed."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    return read_build(file.read_text() if file.exists() else "")


def read_build(text: str) -> TorchBuild:
    """Parses torch's generated ``version.py``."""
    names = ("__version__", "hip", "cuda")
    found = [re.search(rf"^{name}\b[^=\n]*= '([^']*)'", text, re.MULTILINE) for name in names]
    version, hip, cuda = (match[1] if match else "" for match in found)
    return TorchBuild(version or "unknown", hip, cuda)
