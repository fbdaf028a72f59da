"""What ``llmk serve`` prints on a terminal of 80 columns once it serves."""

from __future__ import annotations

import os
import pty
import re
import signal
import struct
import subprocess
import termios
from fcntl import ioctl

import pytest
from served import LLMK, MODEST

LOG = re.compile(r"\d\d:\d\d:\d\d .*")
COLOUR = re.compile(r"\033\[\d+m")
ROWS, COLUMNS = 24, 80


def report(**environ: str) -> list[str]:
    """The lines up to the one with the URL, without the log's."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {**os.environ, **MODEST, "TERM": "xterm", **environ}
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = subprocess.Popen([*LLMK, "serve", "--port", "0"], **streams, env=env, start_new_session=True)
    os.close(slave)
    lines: list[str] = []
    try:
        with os.fdopen(master, errors="replace") as terminal:
            for line in terminal:
                lines.append(line.rstrip("\r\n"))
                if "serving demo on" in line:
                    break
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    finally:
        process.kill()
        process.wait()
    start = next((i for i, line in enumerate(lines) if COLOUR.sub("", line).startswith("llmk ")), 0)
    return [line for line in lines[start:] if line.strip() and not LOG.match(line)]


@pytest.mark.slow
def test_a_person_finds_what_they_want_on_one_screen() -> None:
    marked = report(NO_COLOR="")
    lines = [COLOUR.sub("", line) for line in marked]
    assert max(map(len, lines)) <= COLUMNS
    assert len(lines) < ROWS, "the top is still on the screen when the URL is printed"
    labels = [line.split()[0] for line in lines[:7]]
    assert labels == ["llmk", "model", "device", "memory", "context", "measured", "parsers"]
    assert re.search(r"memory +[\d.]+ MiB weights, [\d.]+ [MG]iB cache, which holds [\d,]+ tokens", lines[3])
    assert re.search(r"context +[\d,]+ tokens; up to \d+ requests at once", lines[4])
    assert re.search(r"\d+ other ops: reference, or the only candidate", "\n".join(lines))
    assert re.fullmatch(r"serving demo on http://127\.0\.0\.1:\d+", lines[-1])
    assert marked[0].startswith("\033[1mllmk")


@pytest.mark.slow
def test_no_color_is_honoured() -> None:
    assert not COLOUR.search("\n".join(report(NO_COLOR="1")))
