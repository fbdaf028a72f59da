"""Installs torch's build for CPUs, which is gigabytes smaller than the one that pip finds by itself on Linux.

That is for machines without an NVIDIA GPU, on which pip looks nowhere but where it looks by default. On others, and
where torch's own index does not answer, nothing is done: torch comes with what requires it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

INDEX = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def main() -> int:
    """Installs it, or says why it is left to pip. Never fails: whatever is missing, pip looks for later."""
    if reason := why_not(INDEX):
        print(f"torch is left to pip: {reason}")
        return 0
    print(f"torch comes from {INDEX}", flush=True)
    options = ("-qq", "--no-compile", "--no-deps", "-c", str(CONSTRAINTS), "--index-url", INDEX)
    subprocess.run([*PIP, "install", *options, "torch"])
    return 0


def why_not(index: str) -> str:
    """Why torch is not to be taken from ``index``; empty where it is."""
    if shutil.which("nvidia-smi"):
        return "there is an NVIDIA GPU"
    configured = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    if found := re.search(r"[\w-]*index-url|find-links|no-index", configured):
        return f"pip is configured ({found[0]})"
    try:
        with urlopen(f"{index}/torch/", timeout=5):  # nosec B310 # the index is named below, and is HTTPS
            return ""
    except OSError as error:
        return f"{index} does not answer ({error})"


if __name__ == "__main__":
    sys.exit(main())
