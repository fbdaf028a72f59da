"""Machines as folders: what a few of them write under /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmk.api import Host

AVX2 = "fpu sse4_2 avx avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512_vnni"
AMX = f"{AVX512} avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
NEOVERSE_V1 = "fp asimd evtstrm aes crc32 atomics fphp asimdhp asimddp sve i8mm bf16 svebf16"


def machine(root: Path, files: Mapping[str, str], machine: str = "x86_64") -> Host:
    """A host whose root holds ``files``."""
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Host(root=root, environ={}, machine=machine, system="Linux")


def x86(root: Path, flags: str, files: Mapping[str, str] | None = None) -> Host:
    """An x86 machine with 16 GiB."""
    cpuinfo = f"processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
    meminfo = "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\n"
    return machine(root, {"/proc/cpuinfo": cpuinfo, "/proc/meminfo": meminfo, **(files or {})})
