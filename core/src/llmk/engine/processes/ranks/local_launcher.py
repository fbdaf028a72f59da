"""Starts ranks on this machine, as children of the engine's process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

from llmk.api import LaunchContext, RankLauncher, RankPlace, RankProcess
from llmk.engine.processes import child_process as child


class LocalLauncher(RankLauncher):
    """A child for each rank, which leads a process group: what it starts ends with it. One that is stopped (SIGSTOP)
    for long is killed: the others would wait for it, all of them for ever."""

    address = ""

    def __init__(self, context: LaunchContext) -> None:
        self._query, self._ended = context.query, context.ended
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._killed: dict[int, str] = {}
        """Why, by place, of processes that were not left to end by themselves."""
        self._watchers: list[threading.Thread] = []
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._watch("stopped", self._end_stopped)

    def place(self) -> Sequence[RankPlace]:
        return [RankPlace(index=index) for index in range(self._query.tensor * self._query.pipeline)]

    def start(self, place: int, process: RankProcess) -> None:
        command = (sys.executable, *process.arguments)
        with self._lock:
            if self._closing.is_set():
                return
            # In the engine's session: that is what is killed where the engine can't do it any more.
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, process_group=0)
            self._processes[place] = started
        self._watch(f"rank{place}", self._run, place, started, process.input)

    def kill(self) -> None:
        with self._lock:
            self._closing.set()
        for process in list(self._processes.values()):
            if process.returncode is None:
                child.kill_group(process)

    def close(self) -> None:
        self.kill()
        for watcher in self._watchers:
            watcher.join()

    def _watch(self, name: str, run: object, *args: object) -> None:
        watcher = threading.Thread(target=run, args=args, name=f"llmk-{name}", daemon=True)  # type: ignore[arg-type]
        self._watchers.append(watcher)
        watcher.start()

    def _run(self, place: int, process: subprocess.Popen[bytes], data: bytes) -> None:
        """Gives a child what it needs, and waits for its end."""
        child.write(process, data)
        code = process.wait()
        child.kill_group(process)
        if not self._closing.is_set():
            self._ended(place, self._killed.get(place) or child.ending(code))

    def _end_stopped(self) -> None:
        stops: dict[int, child.StopWatch] = {}
        while not self._closing.wait(child.LOOK_SECONDS):
            for place, process in list(self._processes.items()):
                stop = stops.setdefault(place, child.StopWatch(process.pid))
                if (seconds := stop.seconds) >= child.STOPPED_SECONDS:
                    self._killed[place] = f"was stopped (SIGSTOP) for {seconds:.0f} s, and was killed"
                    child.kill_group(process)
