"""Quotas of ``llmk keys`` outlive a server that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
LLMK = (sys.executable, "-m", "llmk")


def llmk(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command whose state is in ``folder``."""
    environment = os.environ | {"XDG_STATE_HOME": str(folder)}
    return subprocess.run([*LLMK, *arguments], capture_output=True, text=True, env=environment, cwd=folder, timeout=120)


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The demo model, with the keys in ``folder``."""
    environment = os.environ | {"XDG_STATE_HOME": str(folder)}
    command = [*LLMK, "serve", "--port", "0", "--tenants.database", "sqlite"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=folder)
    assert process.stdout is not None
    try:
        found = next((url for line in process.stdout if (url := re.search(r"https?://\S+", line))), None)
        assert found, (folder / "log").read_text()
        yield found[0], process
    finally:
        process.kill()
        process.wait()


PROMPT = {"prompt": "hello", "max_tokens": 4}


def ask(url: str, secret: str, path: str = "/v1/completions", fields: Any = None) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of a request."""
    fields = PROMPT if path == "/v1/completions" else fields
    body = None if fields is None else json.dumps(fields).encode()
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, body, headers), timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def test_a_quota_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    made = llmk(tmp_path, "keys", "create", "ada", "--requests-per-minute", "9", "--budget", "2", "--weight", "2")
    assert made.returncode == 0, made.stderr
    ada = made.stdout.strip()
    root = llmk(tmp_path, "keys", "create", "root", "--role", "admin").stdout.strip()
    with server(tmp_path) as (url, process):
        assert [ask(url, ada)[0] for _ in range(2)] == [200, 429]
        process.send_signal(signal.SIGKILL)
        process.wait()
    with server(tmp_path) as (url, _):
        status, _, body = ask(url, root, "/v1/keys")
        assert status == 200, body
        (usage,) = [one["usage"] for one in json.loads(body)["data"] if one["name"] == "ada"]
        assert usage["requests"] == 1
        assert usage["spent"] > 2
        status, headers, body = ask(url, ada)
        assert status == 429, body
        assert json.loads(body)["error"]["code"] == "insufficient_quota"
        assert headers["x-ratelimit-limit-requests"] == "9"
        assert [ask(url, key, "/v1/cache/pins")[0] for key in (root, ada)] == [200, 403]
    listed = llmk(tmp_path, "keys", "list")
    assert re.search(r"ada +user +9 ", listed.stdout), listed.stdout
    assert ada not in listed.stdout
    assert llmk(tmp_path, "keys", "revoke", "ada").returncode == 0
    assert "ada" not in llmk(tmp_path, "keys", "list").stdout
    assert (tmp_path / "llmk/keys.sqlite").stat().st_mode & 0o077 == 0, "others can't read it"


MESSAGES = [{"role": "user", "content": "hello"}]
ROUTES = {
    "/v1/completions": PROMPT,
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4, "stream": True},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
    "/v1/embeddings": {"input": "hello"},
    "/v1/messages": {"model": "demo", "messages": MESSAGES, "max_tokens": 4},
    "/api/chat": {"model": "demo", "messages": MESSAGES},
    "/api/generate": {"model": "demo", "prompt": "hello"},
}


def test_every_route_that_runs_the_model_counts_and_says_what_is_left(tmp_path: Path) -> None:
    """And refuses with 429 and Retry-After, once nothing is left."""
    ada = llmk(tmp_path, "keys", "create", "ada", "--requests-per-minute", str(len(ROUTES))).stdout.strip()
    with server(tmp_path) as (url, _):
        for number, (path, fields) in enumerate(ROUTES.items()):
            status, headers, body = ask(url, ada, path, fields)
            assert status == 200 or path == "/v1/embeddings", (path, body)
            assert headers["x-ratelimit-limit-requests"] == str(len(ROUTES)), path
            assert int(headers["x-ratelimit-remaining-requests"]) <= len(ROUTES) - number, path
            assert headers["x-ratelimit-reset-requests"].endswith("s"), path
        while ask(url, ada)[0] == 200:
            pass
        refused = 0
        for path, fields in ROUTES.items():
            status, headers, body = ask(url, ada, path, fields)
            if status == 200:  # of so many a minute, one more is due every few seconds
                continue
            refused += 1
            assert status == 429, (path, body)
            assert 1 <= int(headers["retry-after"]) <= 60 / len(ROUTES) + 1, path
            assert headers["x-ratelimit-remaining-requests"] == "0", path
            assert "limit of 7 requests per minute is reached" in body
        assert refused >= len(ROUTES) - 2
