"""A real ``llmk serve`` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

LLMK = [sys.executable, "-c", "import sys; from llmk.cli.main import main; sys.exit(main())"]
MODEST = {"OMP_NUM_THREADS": "1", "LLMK__PLATFORM__THREADS": "1", "LLMK__CACHE__MEMORY_GIB": "0.25"}
MODEST |= {"LLMK__ENGINE__STANDBY": "false"}
"""Tests run alongside one another: threads that wait for each other's cores would make all of them slow, the 2 GiB that
the demo model's cache could need may not be there for each, and a standby takes some seconds to import."""


class Served:
    """A server, once it says that it serves. ``log`` is a file that takes its standard error, ``python`` the
    interpreter of the environment that it runs in."""

    def __init__(
        self,
        log: Path,
        *args: str,
        env: dict[str, str] | None = None,
        python: str | Path = sys.executable,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        self._log_file: IO[bytes] = log.open("wb")
        stored = {"LLMK__STORAGE__FOLDER": str(log.parent / "state")}
        environment = {**os.environ, **MODEST, **stored, **(env or {})}
        self.process = subprocess.Popen(
            [python, *LLMK[1:], "serve", *args],
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            env=environment,
            cwd=cwd,
            text=True,
        )
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("serving ")), "")
        found = re.fullmatch(r"serving (\S+) on (https?://\S+)\n", line)
        assert found, f"the server did not start: {line!r}\n{log.read_text()}"
        self.model, self.url = found.groups()

    def get(self, path: str, timeout: float = 30) -> tuple[int, str]:
        """Status and body."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str, body: Any, timeout: float = 60) -> tuple[int, Any]:
        """Status and JSON."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stream(self, path: str, body: Any, timeout: float = 120) -> Iterator[Any]:
        """The events of an answer that comes piece by piece."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps({**body, "stream": True}).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            yield from (json.loads(line[6:]) for line in response if line.startswith(b"data: {"))

    def metric(self, name: str) -> float:
        """The value of a metric that has one for the model."""
        found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found, f"{name} is not among the metrics"
        return float(found[1])

    def children(self) -> list[psutil.Process]:
        """The server's own processes: the engine is one of them."""
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if child.is_running()]

    def engine(self) -> psutil.Process | None:
        """The engine's process, where there is one."""
        return next((child for child in self.children() if _name(child) == "llmk-engine"), None)

    def standby(self) -> psutil.Process | None:
        """The process that is to be the next engine, where there is one."""
        return next((child for child in self.children() if _name(child) == "llmk-standby"), None)

    def wait(self, timeout: float = 60) -> int:
        """The exit status, once the process has ended."""
        return self.process.wait(timeout)

    def close(self) -> None:
        """Ends the process, if it runs, and its children."""
        left = self.children() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for child in left:
            if child.is_running():
                child.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log_file.close()


def _name(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""


def until(holds: Callable[[], bool], timeout: float = 20, what: str = "") -> None:
    """Waits for ``holds``; fails after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, what or "it did not come to hold"
        time.sleep(0.05)
