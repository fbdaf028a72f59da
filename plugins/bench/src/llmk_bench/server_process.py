"""Servers: waiting for one, and starting one by its command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from llmk.api import LlmkError
from llmk_bench.connections import ConnectionFailed, Connections

POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0
STOP_SECONDS = 60.0


class NoServer(LlmkError):
    """No server answers."""

    exit_code = 1


def wait_for(
    url: str, seconds: float, process: subprocess.Popen[bytes] | None = None, headers: dict[str, str] | None = None
) -> str:
    """The name of the first model that the server has, as soon as it answers. Raises NoServer."""
    until = time.monotonic() + seconds
    while True:
        if process is not None and process.poll() is not None:
            raise NoServer(f"the server ended with {process.returncode} before it served; its output is above")
        try:
            return asyncio.run(_model(url, headers or {}))
        except ConnectionFailed as error:
            if time.monotonic() > until:
                hint = "start one, or name it with --url, or have one started with --serve 'llmk serve MODEL'"
                raise NoServer(f"no server answers at {url}: {error}", hint=hint) from error
        time.sleep(POLL_SECONDS)


async def _model(url: str, headers: dict[str, str]) -> str:
    connections = Connections(url, headers)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            response = await connections.send("/v1/models", b"", lambda data, now: None)
    except TimeoutError:
        raise ConnectionFailed(f"it takes connections, but gave no answer within {ANSWER_SECONDS:g} s") from None
    finally:
        connections.close()
    if response.status in (401, 403):
        raise NoServer(f"{url} needs an API key ({response.status})", hint="--api-key KEY, or $OPENAI_API_KEY")
    if response.status >= 500:
        raise ConnectionFailed(f"it answers with {response.status}")
    try:
        found: Any = json.loads(response.body)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise NoServer(f"{url}/v1/models names no model ({response.status})", hint="--model NAME") from None
    return str(found)


@contextlib.contextmanager
def started(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server in a process group of its own. Raises NoServer where there is no such command."""
    try:
        process = subprocess.Popen(shlex.split(command), stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        raise NoServer(f"{command!r} can't be run: {error.strerror}") from error
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """Ends a process group, with patience first."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
