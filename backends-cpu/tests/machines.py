"""Machines as folders: what a few of them write under /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from llmk.api import Host

AVX2 = "fpu sse4_2 avx avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512_vnni"
AMX = f"{AVX512} avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
NEOVERSE_V1 = "fp asimd evtstrm aes crc32 atomics fphp asimdhp asimddp sve i8mm bf16 svebf16"


NEOVERSE_V2 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
    "asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp sve2 sveaes svepmull svebitperm "
    "svesha3 flagm2 frint svei8mm svebf16 i8mm bf16 dgh rng bti"
)
GRAVITON4 = (
    f"processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: {NEOVERSE_V2}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    "CPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 1\n\n"
)
"""AWS r8g, in the form of arch/arm64/kernel/cpuinfo.c, implementer and part of arch/arm64/include/asm/cputype.h."""

POWER10 = (
    "processor\t: 0\ncpu\t\t: POWER10 (architected), altivec supported\nclock\t\t: 3550.000000MHz\n"
    "revision\t: 2.0 (pvr 0080 0200)\n\ntimebase\t: 512000000\nplatform\t: pSeries\nmodel\t\t: IBM,9105-22A\n"
    "machine\t\t: CHRP IBM,9105-22A\nMMU\t\t: Radix\n"
)
"""A partition of an S1022, in the form of arch/powerpc/kernel/setup-common.c and platforms/pseries/setup.c."""
POWER10_HWCAP = {16: 0xDC0065C2, 26: 0xAEF60000}
"""AT_HWCAP and AT_HWCAP2: the bits of arch/powerpc/include/uapi/asm/cputable.h that its ISA 3.1 has."""

Z16 = (
    "vendor_id       : IBM/S390\n# processors    : 2\nbogomips per cpu: 3241.00\nmax thread id   : 0\n"
    "features\t: esan3 zarch stfle msa ldisp eimm dfp edat etf3eh highgprs te vx vxd vxe gs vxe2 vxp sort dflt "
    "vxp2 nnpa sie \nprocessor 0: version = FF,  identification = 0133E8,  machine = 3931\n"
)
"""In the form of arch/s390/kernel/processor.c, with the machine type of a z16 A01."""

RISCV = (
    "processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdcv_zicbom_zicbop_zfh_zfhmin_zvfh_zvfhmin_svinval\nmmu\t\t: sv39\n"
    "uarch\t\t: spacemit,x60\n"
)
"""A SpacemiT K1, in the form of arch/riscv/kernel/cpu.c."""


def auxv(values: Mapping[int, int], order: Literal["little", "big"] = "little") -> bytes:
    """An auxiliary vector of 64-bit pairs, with its end."""
    return b"".join(word.to_bytes(8, order) for pair in (*values.items(), (0, 0)) for word in pair)


def machine(root: Path, files: Mapping[str, str | bytes], machine: str = "x86_64") -> Host:
    """A host whose root holds ``files``."""
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Host(root=root, environ={}, machine=machine, system="Linux")


def x86(root: Path, flags: str, files: Mapping[str, str] | None = None) -> Host:
    """An x86 machine with 16 GiB."""
    cpuinfo = f"processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
    meminfo = "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\n"
    return machine(root, {"/proc/cpuinfo": cpuinfo, "/proc/meminfo": meminfo, **(files or {})})
