"""Spawns an engine's process. Nothing heavy is imported here, so that this can be the first thing done."""

from __future__ import annotations

import subprocess

from llmk.kernel.interpreter import PYTHON

AHEAD = "llmk.engine.launch"
"""What takes an engine longest to import."""
STANDBY = "--standby"


def spawn(*ahead: str, standby: bool = False) -> subprocess.Popen[bytes]:
    """Starts a process that imports the modules ``ahead`` while it waits for what it is to run
    (:class:`llmk.engine.processes.engine_process.ProcessClient`). It ends with this one, if it is not ended before.
    With ``standby`` it imports at a low priority: an engine runs meanwhile.
    """
    command = (*PYTHON, "-m", "llmk.engine.processes.engine_process", *([STANDBY] if standby else ()), *ahead)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
