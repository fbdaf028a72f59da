"""A launcher: ranks on this machine, each behind a command such as ``nice`` or ``numactl``, in a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from llmk.api import (
    OK,
    LaunchContext,
    LaunchQuery,
    NotEnoughResources,
    RankLauncher,
    RankPlace,
    RankProcess,
    Verdict,
    no,
)
from llmk_meadow.options import read

LAST_WORDS = 1.0
"""How many seconds :meth:`Nicely.close` waits for each thread."""


def supports(query: LaunchQuery) -> Verdict:
    """A device for each rank."""
    ranks, facts = query.tensor * query.pipeline, query.platform
    if facts.shared_device or not facts.num_devices or ranks <= facts.num_devices:
        return OK
    return no("devices", wanted=ranks, found=facts.num_devices, hint="use fewer ranks")


def how(code: int) -> str:
    """How a process ended, by its return code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Nicely(RankLauncher):
    """A process for each rank, with three threads: one writes its input, one reads its output, one hears of its end."""

    def __init__(self, context: LaunchContext) -> None:
        options = read(context.options)
        self.address = ""
        self._context = context
        self._command = options.command
        self._most = options.places
        self._lock = threading.Lock()
        self._killed = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def place(self) -> Sequence[RankPlace]:
        """All on this machine, a device for each."""
        query = self._context.query
        ranks = query.tensor * query.pipeline
        if ranks > self._most:
            raise NotEnoughResources(
                f"{ranks} ranks need as many places, and this machine has {self._most}",
                hint="raise plugin.meadow.places, or use fewer ranks",
            )
        return [RankPlace(index=number) for number in range(ranks)]

    def start(self, place: int, process: RankProcess) -> None:
        """In a session of its own, so that all that it starts can be killed."""
        with self._lock:
            if self._killed:
                return
            started = subprocess.Popen(
                [*self._command, sys.executable, *process.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._processes[place] = started
        assert started.stdin, "it is a pipe"
        assert started.stdout, "it is a pipe"
        self._thread(self._write, started.stdin, process.input)
        reader = self._thread(self._read, place, started.stdout)
        self._thread(self._wait, place, started, reader)

    def _thread(self, run: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _write(self, stream: IO[bytes], data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # of a process that has ended, which is reported
            stream.write(data)
            stream.flush()

    def _read(self, place: int, stream: IO[bytes]) -> None:
        for line in stream:
            self._context.said(place, line.decode(errors="replace").rstrip("\r\n"))

    def _wait(self, place: int, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        code = process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, int(signal.SIGKILL))  # what it started and left, which may hold its output
        reader.join()
        with self._lock:
            killed = self._killed
        if not killed:
            self._context.ended(place, how(code))

    def kill(self) -> None:
        """All processes and what they started."""
        with self._lock:
            self._killed = True
            for process in self._processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills what runs, and waits for the end of it."""
        self.kill()
        for process in self._processes.values():
            process.wait()
        for thread in self._threads:
            thread.join(LAST_WORDS)
        for process in self._processes.values():
            for stream in (process.stdin, process.stdout):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._processes.clear()
        self._threads.clear()
