"""Starts ranks by a command for each host, such as ssh, which passes on their input and output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

from llmk.api import LaunchContext, NotEnoughResources, RankPlace, RankProcess


class HostsLauncher:
    """A rank on each host."""

    def __init__(self, context: LaunchContext) -> None:
        self._context, self._options = context, context.options
        self.address = self._options["address"]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._killed, self._lock = False, threading.Lock()

    def place(self) -> Sequence[RankPlace]:
        wanted, hosts = self._context.query.tensor * self._context.query.pipeline, self._options["hosts"]
        if wanted > len(hosts):
            raise NotEnoughResources(f"{wanted} ranks need a host each, and there are {', '.join(hosts)}")
        return [RankPlace(node=host, address=host) for host in hosts[:wanted]]

    def start(self, place: int, process: RankProcess) -> None:
        command = [part.format(host=self._options["hosts"][place]) for part in self._options["command"]]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self._lock:
            if self._killed:
                return
            running = subprocess.Popen([*command, *process.arguments], start_new_session=True, **pipes)
            self._running[place] = running
        reader = threading.Thread(target=self._read, args=(place, running), daemon=True)
        reader.start()
        threading.Thread(target=_write, args=(running, process.input), daemon=True).start()
        threading.Thread(target=self._wait, args=(place, running, reader), daemon=True).start()

    def _read(self, place: int, running: subprocess.Popen[bytes]) -> None:
        for line in running.stdout:
            self._context.said(place, line.decode(errors="replace").rstrip())

    def _wait(self, place: int, running: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        code = running.wait()
        _kill_group(running)  # what it left has its output open
        reader.join()
        if not self._killed:
            how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
            self._context.ended(place, how)

    def kill(self) -> None:
        with self._lock:
            self._killed = True
        for running in self._running.values():
            if running.returncode is None:
                _kill_group(running)

    def close(self) -> None:
        self.kill()
        for running in self._running.values():
            running.wait()


def _write(running: subprocess.Popen[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended, with the exit code that is reported
        running.stdin.write(data)
        running.stdin.flush()


def _kill_group(running: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
