"""Which CUDA the installed torch was built with, read from its files. torch itself is not imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A build of torch. ``cuda`` is the CUDA version that it needs, ``""`` for a build without CUDA."""

    version: str
    cuda: str = ""

    @property
    def cuda_major(self) -> int:
        """The part of ``cuda`` that a driver must have too: a driver serves all minor versions of its major one."""
        return int(self.cuda.split(".")[0])


def installed_torch() -> TorchBuild | None:
    """The build that ``import torch`` would import; ``None`` if torch is not installed."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    return read_build(file.read_text() if file.exists() else "")


def read_build(text: str) -> TorchBuild:
    """Parses torch's generated ``version.py``."""
    found = {name: re.search(rf"^{name}\b[^=\n]*= '([^']*)'", text, re.MULTILINE) for name in ("__version__", "cuda")}
    version, cuda = (match[1] if match else "" for match in found.values())
    return TorchBuild(version or "unknown", cuda)
