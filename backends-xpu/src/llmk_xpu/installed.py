"""What was installed of torch, Triton and the driver, read from their files. None of them is imported or loaded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from llmk.api import Host, parse_torch_versions, torch_version_file

LIBRARY = "libze_intel_gpu.so.1"
"""The driver for programs: Level Zero for Intel's GPUs, from the compute runtime."""

_FOLDERS = ("/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
"""In the order in which the loader searches them."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A build of torch: ``xpu`` is the version of the SYCL compiler that it was built with, ``""`` for a build without;
    ``graphs``: whether it has graphs for XPUs."""

    version: str
    xpu: str = ""
    cuda: str = ""
    graphs: bool = False

    def __str__(self) -> str:
        return f"torch {self.version}" + (f", built with CUDA {self.cuda}" if self.cuda else "")


def installed_torch() -> TorchBuild | None:
    """The build that ``import torch`` would import; ``None`` if torch is not installed."""
    text, spec = torch_version_file(), find_spec("torch")
    if text is None or spec is None or spec.origin is None:
        return None
    return read_build(text, graphs=(Path(spec.origin).parent / "xpu/graphs.py").exists())


def read_build(text: str, *, graphs: bool = False) -> TorchBuild:
    """Of torch's generated ``version.py``."""
    found = parse_torch_versions(text)
    xpu = found.get("xpu", "")
    return TorchBuild(found["__version__"], xpu, found.get("cuda", ""), graphs and bool(xpu))


def has_triton() -> bool:
    """Whether the installed Triton compiles for these GPUs: ``triton-xpu`` does, ``triton`` does not, and pip installs
    either over the other."""
    spec = find_spec("triton")
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / "backends/intel").is_dir()


def driver_version(host: Host) -> tuple[int, ...] | None:
    """The version of :data:`LIBRARY`, from the file's name: ``(1, 6, 33578)``. ``()`` where the name has none, ``None``
    where there is no such file. Of several, that of the first folder counts, and there what the link names."""
    search = [folder for folder in host.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    for folder in map(host.path, (*search, *_FOLDERS)):
        link = folder / LIBRARY
        if names := [link.readlink().name] if link.is_symlink() else [file.name for file in folder.glob(f"{LIBRARY}*")]:
            versions = [name.removeprefix("libze_intel_gpu.so.").split(".") for name in names]
            return max((tuple(map(int, v)) for v in versions if len(v) > 1 and all(map(str.isdecimal, v))), default=())
    return None
