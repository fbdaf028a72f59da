"""The server under attack, and what it says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from processes import descendants

from hostile_cases.wire import Target

LLMK = [sys.executable, "-c", "import sys; from llmk.cli.main import main; sys.exit(main())"]


class Server:
    """``llmk serve`` in a process of its own; ``log`` takes its standard error."""

    def __init__(self, arguments: Sequence[str], log: Path, within: float, keys: Sequence[str]) -> None:
        self.log = log
        environment = {**os.environ, "XDG_STATE_HOME": str(log.parent)}
        if keys:
            environment["LLMK__SERVER__API_KEYS"] = json.dumps(keys)
        with log.open("wb") as stderr:
            command = [*LLMK, "serve", "--port", "0", *arguments]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("serving ")), "")
        if not line:
            raise SystemExit(f"the server did not start:\n{log.read_text()}")
        address = urlsplit(line.split()[-1])
        assert address.hostname
        assert address.port
        self.quiet, self.target = (Target(address.hostname, address.port, within, key) for key in keys or ("", ""))

    def metrics(self) -> str:
        """What /metrics says."""
        connection = HTTPConnection(self.target.host, self.target.port, timeout=60)
        try:
            connection.request("GET", "/metrics", headers={"authorization": f"Bearer {self.quiet.key}"})
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def close(self) -> int | None:
        """Ends the server; its exit status, ``None`` where it had to be killed."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            for each in [*descendants(self.process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            self.process.wait()
            return None
