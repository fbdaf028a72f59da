"""Runs the tests of the Triton kernels with every release of Triton that the wheels say they work with.

Each is installed into a folder of its own under ``.cache``, which stands before the environment on the path. Named
releases alone are tried where arguments name some: ``python tools/triton_versions.py 3.9``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MINORS = ((3, 6), (3, 7), (3, 8), (3, 9))
"""What ``pyproject.toml`` of the wheels and ``Needs.packages`` of kernels allow; a test compares them."""
NEEDS = {"3.6": ("numpy<2.4",)}
"""What a release's interpreter needs that Triton itself does not: 3.6 makes numbers of arrays of one element."""
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Tries one after the other, all of them whatever comes of each; 1 where a test failed."""
    wanted = sys.argv[1:] or [f"{major}.{minor}" for major, minor in MINORS]
    failed = [version for version in wanted if not passes(version)]
    print(f"Triton {', '.join(wanted)}: " + (f"failed with {', '.join(failed)}" if failed else "all passed"))
    return int(bool(failed))


def passes(version: str) -> bool:
    """Whether the kernels' tests pass with the newest release of a minor version."""
    folder = ROOT / ".cache/triton" / version
    if not folder.exists():
        unfinished = folder.with_name(f"{version}.unfinished")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(unfinished)]
        subprocess.run([*pip, f"triton=={version}.*", *NEEDS.get(version, ())], check=True)
        unfinished.rename(folder)
    print(f"\nTriton {version}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "plugins/triton/tests"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(folder)}).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
