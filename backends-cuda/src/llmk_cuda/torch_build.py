"""Which CUDA the installed torch was built with, read from its files. torch itself is not imported."""

from __future__ import annotations

from dataclasses import dataclass

from llmk.api import parse_torch_versions, torch_version_file


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
    text = torch_version_file()
    return None if text is None else read_build(text)


def read_build(text: str) -> TorchBuild:
    """Of torch's generated ``version.py``."""
    found = parse_torch_versions(text)
    return TorchBuild(found["__version__"], found.get("cuda", ""))
