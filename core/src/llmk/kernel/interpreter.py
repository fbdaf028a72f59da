"""How llmk starts Python: without the working directory, which may be a downloaded checkpoint, on the module path."""

from __future__ import annotations

import os
import sys

PYTHON = (sys.executable, "-P")
"""The start of the command line of every Python process."""
BARE_PYTHON = (sys.executable, "-I", "-S")
"""The same for scripts that need only the standard library, without installed packages."""


def keep_path_safe() -> None:
    """Makes all Python child processes do the same, recursively, including those that libraries start."""
    os.environ["PYTHONSAFEPATH"] = "1"
