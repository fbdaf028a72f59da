"""Tuned configurations: how a kernel is launched where that was measured, as data of the package.

``configs/<kernel>.<architecture>.json`` maps a dtype (or a weight's format, as ``fp8_block``), a shape and a number of
rows to a configuration, whose keys are the kernel's own::

    {"bfloat16": {"6144x4096": {"1": {"rows": 4}, "16": {"block_n": 64}, ...}, ...}, ...}

The architecture is ``sm_90`` or ``gfx942``, as platforms name it. What a shape is, the kernel says; of a product, it is
the weight's rows and columns. An entry serves its number of rows, and fewer where these have no entry of their own.
Where there is none, a kernel has a rule. ``python benchmarks/kernels.py --sweep products --save DIR`` writes such
files.
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
    """``sm_90``, ``gfx942``."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


@cache
def table(kernel: str, arch: str) -> Table:
    """What was measured for a kernel: by dtype, shape and rows."""
    file = files("llmk_triton") / "configs" / f"{kernel}.{arch}.json"
    found: Table = json.loads(file.read_text()) if file.is_file() else {}
    return found


def tuned(kernel: str, target: GPUTarget, dtype: str, shape: str, rows: int) -> Config | None:
    """The configuration that was measured for as many rows, or for the next more; none where none was."""
    by_rows = table(kernel, architecture(target)).get(dtype, {}).get(shape, {})
    bucket = min((int(most) for most in by_rows if int(most) >= rows), default=0)
    return by_rows[str(bucket)] if bucket else None
