"""Makes the machines of these tests importable. Without a GPU that supports fp8, Triton's interpreter runs kernels,
patched as for the portable ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "plugins/triton/tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from gpus import FP8  # noqa: E402 (the path comes first)

if not FP8:
    os.environ["TRITON_INTERPRET"] = "1"
    import interpreter

    interpreter.patch()
