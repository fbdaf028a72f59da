"""A real ``llmk serve``, in processes of its own, for tests that talk to it over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server

LLMK = Path(sys.executable).with_name("llmk")
START_SECONDS = 120.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``log`` is what it printed."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    @contextmanager
    def start(cls, folder: Path, *flags: str) -> Iterator[Server]:
        """Serves the demo model (or what ``flags`` name) from ``folder`` on a free port, until the block ends."""
        with create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        log = folder / "server.log"
        command = [str(LLMK), "serve", *flags, "--port", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        server = cls(f"http://127.0.0.1:{port}", process, log)
        try:
            server._wait_until_ready()
            yield server
        finally:
            server._stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server stopped:\n{self.log.read_text()}"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.1)
        raise AssertionError(f"the server was not ready after {START_SECONDS} s:\n{self.log.read_text()}")

    def _stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop on SIGTERM:\n{self.log.read_text()}") from None
