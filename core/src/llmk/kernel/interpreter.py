"""How llmk starts Python: with a module path that lacks the working directory, which may be a downloaded checkpoint."""

from __future__ import annotations

import os
import sys

PYTHON = (sys.executable, "-P")
"""What every command line of a Python process begins with."""
BARE_PYTHON = (sys.executable, "-I", "-S")
"""The same for a script that needs the standard library alone, and none of what is installed."""


def keep_path_safe() -> None:
    """Has all Python processes that this one starts, and those that they start, do the same, whoever starts them."""
    os.environ["PYTHONSAFEPATH"] = "1"
