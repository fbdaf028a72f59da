"""Kernels run in Triton's interpreter here, on the CPU. It is set up before Triton is imported, and patched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import interpreter

interpreter.patch()
