"""Serves the embedded demo model, asks it one question over HTTP, prints the answer, and stops the server.

Standard library only, so that what it shows is all that a client needs. Exits with 0 when the question was answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from os.path import relpath
from pathlib import Path
from socket import create_server

LLMK = Path(sys.executable).with_name("llmk")
QUESTION = "What is llmk?"
START_SECONDS = 180.0
STOP_SECONDS = 30.0


def main() -> int:
    """Runs the demo; 0 when the question was answered."""
    port = free_port()
    try:
        with server(port) as process:
            wait_until_ready(process, port)
            print(f"\nyou   {QUESTION}\nllmk  ", end="", flush=True)
            for piece in ask(port, QUESTION):
                print(piece, end="", flush=True)
            print("\n", flush=True)
    except DemoFailed as error:
        print(f"make demo: {error}", file=sys.stderr)
        return 1
    print(f"Now try:  {relpath(LLMK)} chat   or   {relpath(LLMK)} serve")
    return 0


class DemoFailed(Exception):
    """The demo did not come to an answer; the message says where it stopped."""


def free_port() -> int:
    """A port that nobody listens on."""
    with create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``llmk serve`` on ``port``, stopped at the end whatever happened."""
    command = [str(LLMK), "serve", "--port", str(port), "--server.log-level", "warning"]
    print(f"$ {' '.join(command)}", flush=True)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Returns when ``/health`` answers 200."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"the server stopped with exit code {process.returncode}; its own words stand above")
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise DemoFailed(f"the server was not ready after {START_SECONDS:.0f} s")


def ask(port: int, question: str) -> Iterator[str]:
    """Streams the answer to ``question`` from ``/v1/chat/completions``."""
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "temperature": 0, "max_tokens": 200}
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise DemoFailed(f"the server answered {response.status}: {response.read().decode(errors='replace')}")
    answered = False
    for line in response:
        data = line.decode().removeprefix("data:").strip()
        if data and data != "[DONE]":
            for choice in json.loads(data)["choices"]:
                if piece := choice["delta"].get("content"):
                    answered = True
                    yield piece
    connection.close()
    if not answered:
        raise DemoFailed("the answer was empty")


if __name__ == "__main__":
    sys.exit(main())
