"""The watchdog process, which watches another process while that runs plugins' code. Started by
:mod:`llmk.kernel.watchdog` by its path and without site packages, so that it starts within milliseconds.

Arguments: the id of the watched process; a file descriptor from which to read what is running, as a line of JSON; the
seconds between interrupting and killing; and the id of the parent process with which the watched one ends, or 0.
Standard input is closed when the watched process ends.

Code that takes too long is interrupted by SIGALRM. If it does not end, its name is written to standard error, and the
process is killed. Code that was running when the process ended is named too, unless the process ended with its parent.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

_PERIOD = 0.2


def main() -> None:
    """Watches the other process until it ends."""
    process, file, grace, parent = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    signalled: dict[int, float] = {}
    while not select.select([0], [], [], _PERIOD)[0]:
        now = time.monotonic()
        for mark in running(file):
            if now < mark["until"]:
                continue
            if mark["signals"] and mark["id"] not in signalled:
                signalled[mark["id"]] = now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGALRM)
            elif now > signalled.get(mark["id"], 0) + grace:
                late = f"{mark['what']} is not finished after {mark['seconds']:g} s, and can't be interrupted"
                report(f"{late}: this process is killed", mark)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                return
    left = running(file)
    if left and not is_gone(parent):
        why = "it exited, aborted or crashed, unless the process was killed"
        report(f"this process ended during {left[-1]['what']}: {why}", left[-1])


def running(file: int) -> list[dict[str, Any]]:
    """The watched code that is running, innermost last."""
    try:
        found: list[dict[str, Any]] = json.loads(os.pread(file, 1 << 20, 0).partition(b"\n")[0] or b"[]")
    except ValueError:  # it is being written
        return []
    return found


def is_gone(parent: int) -> bool:
    """Whether the parent process has ended, or ends within half a second."""
    if not parent:
        return False
    time.sleep(0.5)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return True
    return False


def report(text: str, mark: dict[str, Any]) -> None:
    """Writes an error in the format of ``llmk``'s errors."""
    os.write(2, f"llmk: {text}\n  hint: {mark['hint']}\n".encode())


if __name__ == "__main__":
    main()
