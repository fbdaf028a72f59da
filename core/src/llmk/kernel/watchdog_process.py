"""Watches another process while it runs plugins' code. Run by :mod:`llmk.kernel.watchdog`, by its path and without site
packages, so that it starts within milliseconds.

Arguments: the process's id; a descriptor of the file in which it keeps what is running, as a line of JSON; seconds
between a signal and the end; and the id of the process that has to end the watched one, or 0. Standard input ends when
the watched process does.

What takes too long gets SIGALRM; where that doesn't end it, it is named on standard error, and the process is killed.
What was running when the process ended is named too, unless that was ended because its parent is gone.
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
    """Follows the other process to its end."""
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
                late = f"{mark['what']} is not over after {mark['seconds']:g} s, and nothing interrupts it"
                tell(f"{late}: this process is killed", mark)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                return
    left = running(file)
    if left and not is_gone(parent):
        why = "unless it was killed, that exited, aborted or crashed"
        tell(f"this process ended during {left[-1]['what']}: {why}", left[-1])


def running(file: int) -> list[dict[str, Any]]:
    """What is not over, the innermost last."""
    try:
        found: list[dict[str, Any]] = json.loads(os.pread(file, 1 << 20, 0).partition(b"\n")[0] or b"[]")
    except ValueError:  # it is being written
        return []
    return found


def is_gone(parent: int) -> bool:
    """Whether the process that has to end the other one ends as well, within a moment."""
    if not parent:
        return False
    time.sleep(0.5)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return True
    return False


def tell(text: str, mark: dict[str, Any]) -> None:
    """Writes an error as ``llmk`` writes them."""
    os.write(2, f"llmk: {text}\n  hint: {mark['hint']}\n".encode())


if __name__ == "__main__":
    main()
