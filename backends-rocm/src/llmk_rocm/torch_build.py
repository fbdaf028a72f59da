"""What the installed torch was built for, read from its files. torch itself is not imported."""

from __future__ import annotations

from dataclasses import dataclass

from llmk.api import parse_torch_versions, torch_version_file


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
    text = torch_version_file()
    return None if text is None else read_build(text)


def read_build(text: str) -> TorchBuild:
    """Of torch's generated ``version.py``."""
    found = parse_torch_versions(text)
    return TorchBuild(found["__version__"], found.get("hip", ""), found.get("cuda", ""))
