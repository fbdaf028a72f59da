"""What the specs of all kernels of this package have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmk.api import KernelSpec, Needs, PlatformFacts, Tier

DTYPES = ("bfloat16", "float16", "float32")
NEEDS = Needs(features=("triton",), dtypes=DTYPES, packages=("triton>=3.6,<3.10",))
HALVES = replace(NEEDS, dtypes=("bfloat16", "float16"))
HOPPER = replace(HALVES, archs=("sm_90",))
"""Where there is a bulk copy engine of the kind that kernels here use, and where GEMMs with few outputs were measured
to be faster than a library's."""
_RDNA = "gfx1"
"""How the names of AMD's architectures start that have 32 threads per warp."""
WIDEST_ROW = 1 << 15
"""Most elements of a row that one program of a norm holds."""
SMALL_N = 256
"""Most outputs (N) for which a GEMM is bound by latency, not by reading the weight, such as a router's."""


def has_large_tiles(platform: PlatformFacts) -> bool:
    """Whether programs have registers for tiles of hundreds of columns: not on RDNA, and not tried on Intel's GPUs,
    which say how many threads a sub-group has."""
    return not platform.arch.startswith(_RDNA) and not any(name.startswith("subgroup") for name in platform.features)


def widens_fp8(platform: PlatformFacts) -> bool:
    """Whether Triton converts fp8 as checkpoints have it to 16 bits: where devices compute in it, and where they have a
    format of their own, by integer instructions (tested on gfx942 by Triton's own tests of conversions)."""
    return not platform.features.isdisjoint({"fp8", "fp8_fnuz"})


def kernel_spec(name: str, kind: str, where: str, **fields: Any) -> KernelSpec:
    """The spec of a kernel of this package: portable, graph-capturable and JIT-compiled, unless ``fields`` override
    that."""
    given: dict[str, Any] = {"tier": Tier.PORTABLE, "needs": NEEDS, "capture": "full", "jit": True} | fields
    return KernelSpec(id=f"triton.{name}", kind=kind, implementation=f"llmk_triton.{where}", **given)
