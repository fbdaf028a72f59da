"""Makes the machines of these tests importable. Triton's interpreter runs kernels, patched as for the portable ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "plugins/triton/tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

os.environ["TRITON_INTERPRET"] = "1"

import interpreter  # noqa: E402 (the path and the variable come first)

interpreter.patch()
