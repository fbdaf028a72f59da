"""Tuned configurations: measured launch configurations of kernels, as package data.

``configs/<kernel>.<architecture>.json`` maps a dtype (or a weight format such as ``fp8_block``), a shape and a number
of rows to a configuration, whose keys depend on the kernel::

    {"bfloat16": {"6144x4096": {"1": {"rows": 4}, "16": {"block_n": 64}, ...}, ...}, ...}

The architecture is named as platforms name it, such as ``sm_90`` or ``gfx942``. The meaning of a shape depends on the
kernel; for a GEMM, it is the weight's ``NxK``. An entry is used for its number of rows, and for smaller numbers without
an entry. Without an entry, a kernel uses a heuristic. ``python benchmarks/kernels.py --sweep gemm --save DIR`` writes
such files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from triton.backends.compiler import GPUTarget

Config = Mapping[str, int]
Table = Mapping[str, Mapping[str, Mapping[str, Config]]]


def architecture(target: GPUTarget) -> str:
    """The name of the target's architecture: ``sm_90``, ``gfx942``."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


@cache
def table(kernel: str, arch: str) -> Table:
    """The tuned configurations of a kernel: by dtype, shape and rows."""
    file = files("llmk_triton") / "configs" / f"{kernel}.{arch}.json"
    found: Table = json.loads(file.read_text()) if file.is_file() else {}
    return found


def tuned(kernel: str, target: GPUTarget, dtype: str, shape: str, rows: int) -> Config | None:
    """The tuned configuration for the least measured number of rows that is at least ``rows``; ``None`` if there is
    none."""
    by_rows = table(kernel, architecture(target)).get(dtype, {}).get(shape, {})
    bucket = min((int(most) for most in by_rows if int(most) >= rows), default=0)
    return by_rows[str(bucket)] if bucket else None
