"""Starts ranks by a command for each host, such as ssh, which passes on their input and output."""

from __future__ import annotations

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
        self._killed = False

    def place(self) -> Sequence[RankPlace]:
        wanted, hosts = self._context.query.tensor * self._context.query.pipeline, self._options["hosts"]
        if wanted > len(hosts):
            raise NotEnoughResources(f"{wanted} ranks need a host each, and there are {', '.join(hosts)}")
        return [RankPlace(node=host, address=host) for host in hosts[:wanted]]

    def start(self, place: int, process: RankProcess) -> None:
        command = [part.format(host=self._options["hosts"][place]) for part in self._options["command"]]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._running[place] = subprocess.Popen([*command, *process.arguments], **pipes)
        threading.Thread(target=self._follow, args=(place, process.input), daemon=True).start()

    def _follow(self, place: int, data: bytes) -> None:
        running = self._running[place]
        try:
            running.stdin.write(data)
            running.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, with the exit code that follows
        for line in running.stdout:
            self._context.said(place, line.decode(errors="replace").rstrip())
        code = running.wait()
        if not self._killed:
            self._context.ended(place, f"ended with exit code {code}")

    def kill(self) -> None:
        self._killed = True
        for running in list(self._running.values()):
            running.kill()

    def close(self) -> None:
        self.kill()
        for running in self._running.values():
            running.wait()
