"""A part of a verification in a process of its own, so that a crash or hang of a driver is a result like any other.

Run as ``python -m llmk_testing.verify.child PART OPTIONS``, it writes the part as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmk.api.errors import describe
from llmk.kernel.interpreter import PYTHON
from llmk_testing.verify.record import Part


def run_part(name: str, options: Mapping[str, Any], timeout: float) -> Part:
    """Runs the part; where its process dies or takes longer than ``timeout`` seconds, that is its problem."""
    command = [*PYTHON, "-X", "faulthandler", "-m", "llmk_testing.verify.child", name, json.dumps(options)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return Part(problems=[f"its process was killed after {timeout:g} seconds; --timeout sets another limit"])
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-20:])
        return Part(problems=[f"its process ended with exit code {done.returncode}:\n{last}"])
    return Part(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Runs one part. What else is printed goes to standard error."""
    name, options = sys.argv[1], json.loads(sys.argv[2])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        part = _run(name, options)
    except Exception as error:
        part = Part(problems=[str(error) if hasattr(error, "hint") else f"raised {describe(error)}"])
    print(json.dumps(asdict(part)), file=out, flush=True)
    os._exit(0)  # even if a driver left threads running


def _run(name: str, options: dict[str, Any]) -> Part:
    if name == "tokens":
        from llmk_testing.verify.tokens import compare

        return compare(options["platform"], tuple(options["dtypes"]), thorough=options["thorough"])
    from llmk_testing.verify.timings import measure, open_device

    if name == "device":
        return open_device(options["platform"])
    return measure(options["platform"], options["dtypes"][0], thorough=options["thorough"], seed=options["seed"])


if __name__ == "__main__":
    main()
