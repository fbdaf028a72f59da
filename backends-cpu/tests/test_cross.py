"""The C++ sources on other architectures: cross-compiled, and run under an emulator. Plain C++, which the wheel
has where there are no vectors for kernels, runs on this machine too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_OTHERS = ("pool", "dispatch", "linear_tiles", "matrix_check")
"""What is not compiled per level, and what is for AVX512-VNNI or AMX alone."""
KERNELS = tuple(file.stem for file in (ROOT / "native").glob("*.cpp") if file.stem not in _OTHERS)
TARGETS = {
    "generic": ("c++", "", ("-DLLMK_PLAIN",)),
    "aarch64-neon": ("aarch64-linux-gnu-g++", "qemu-aarch64", ()),
    "aarch64-generic": ("aarch64-linux-gnu-g++", "qemu-aarch64", ("-DLLMK_PLAIN",)),
    "ppc64le-vsx": ("powerpc64le-linux-gnu-g++", "qemu-ppc64le", ("-mcpu=power8",)),
    "ppc64le-generic": ("powerpc64le-linux-gnu-g++", "qemu-ppc64le", ("-DLLMK_PLAIN",)),
    "s390x-generic": ("s390x-linux-gnu-g++", "qemu-s390x", ("-DLLMK_PLAIN",)),
}
"""By architecture and level: the compiler, the emulator if one is needed, and flags as in ``CMakeLists.txt``."""


def tool(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        packages = "g++-aarch64-linux-gnu, g++-powerpc64le-linux-gnu, g++-s390x-linux-gnu, qemu-user"
        pytest.skip(f"{names[0]} is not installed (Debian: {packages})")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_agree_with_plain_arithmetic(target: str, tmp_path: Path) -> None:
    name, emulator, flags = TARGETS[target]
    compiler = tool(name)
    emulators = [tool(emulator, f"{emulator}-static")] if emulator else []
    level = target.rpartition("-")[2]
    sources = [str(ROOT / "native" / f"{file}.cpp") for file in (*KERNELS, "pool")]
    options = ["-std=c++17", "-O2", "-static", "-pthread", "-fno-math-errno", "-Wno-psabi", f"-DLLMK_LEVEL={level}"]
    include = f"-I{ROOT / 'native'}"
    subprocess.run(
        [compiler, *options, *flags, include, str(ROOT / "tests/vectors.cpp"), *sources, "-o", tmp_path / "vectors"],
        check=True, timeout=500,
    )  # fmt: skip
    done = subprocess.run([*emulators, str(tmp_path / "vectors")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
