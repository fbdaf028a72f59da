"""Spawns an engine's process. Nothing heavy is imported here, so that this can be the first thing done."""

from __future__ import annotations

import os
import subprocess

from llmk.kernel.interpreter import PYTHON

AHEAD = "llmk.engine.launch"
"""What takes an engine longest to import."""
STANDBY = "--standby"
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_SPINS = "1000"


def waiting() -> dict[str, str]:
    """What the environment should say before libraries with OpenMP are loaded, unless it says how threads wait.

    A thread looks for work for about 50 microseconds before it sleeps, which is longer than the gaps between operators.
    By default, it looks for milliseconds, in which others need the processor: on a machine that is busy, small
    operators of torch then take tens of times as long.
    """
    return {} if any(name in os.environ for name in _WAITING) else {_WAITING[1]: _SPINS}


def spawn(*ahead: str, standby: bool = False) -> subprocess.Popen[bytes]:
    """Starts a process that imports the modules ``ahead`` while it waits for what it is to run
    (:class:`llmk.engine.processes.engine_process.ProcessClient`). It ends with this one, if it is not ended before.
    With ``standby`` it imports at a low priority: an engine runs meanwhile.
    """
    command = (*PYTHON, "-m", "llmk.engine.processes.engine_process", *([STANDBY] if standby else ()), *ahead)
    own = os.environ | waiting()
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True, env=own)
