"""``llmk chat`` in a terminal of 80 columns, and in a pipe."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live
import pytest
from scripted_model import Turn, scripted_service
from served import LLMK, MODEST, Served

pexpect = pytest.importorskip("pexpect", reason="no terminal to test in: pip install pexpect")
pyte = pytest.importorskip("pyte", reason="no terminal to test in: pip install pyte")
pytestmark = pytest.mark.slow
SIZE = (40, 80)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("chat") / "log", "--port", "0", "--api-key", "secret")
    yield server
    server.close()


class Terminal:
    """A terminal of :data:`SIZE` in which ``llmk chat`` runs."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        more = {**MODEST, "TERM": "xterm-256color", "XDG_STATE_HOME": str(folder), **environment}
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        self.screen = pyte.HistoryScreen(SIZE[1], SIZE[0], history=1000)
        self.screen.write_process_input = lambda answer: self.child.send(answer)  # what a terminal says of itself
        self._stream = pyte.Stream(self.screen)
        command = [*LLMK, "chat", *arguments]
        self.child: Any = pexpect.spawn(
            command[0], command[1:], env={**kept, **more}, dimensions=SIZE, encoding="utf-8", timeout=120
        )

    def wait(self, text: str, seconds: float = 90) -> str:
        """Reads until the screen has ``text``, a regular expression; returns the screen."""
        for _ in range(round(seconds / 0.1)):
            try:
                self._stream.feed(self.child.read_nonblocking(1 << 16, timeout=0.1))
            except pexpect.TIMEOUT:
                pass
            except pexpect.EOF:
                break
            if re.search(text, self.text):
                return self.text
        raise AssertionError(f"{text!r} is not on the screen:\n{self.text}")

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def type(self, text: str) -> None:
        """Presses keys."""
        self.child.send(text)

    def end(self) -> int:
        """Leaves; returns the exit code."""
        self.type("\x04")
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus)


def test_a_conversation_in_a_terminal(served: Served, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--url", served.url, "--key", "secret", "--temperature", "0")
    terminal.wait(r"talking to demo; /help lists the commands\n> ?$")
    terminal.type("/thi\t")
    terminal.wait(r"> /think$")
    terminal.type(" of\t")
    terminal.wait(r"> /think off$")
    terminal.type("\r")
    terminal.wait("thinking is off now")
    terminal.type("/nonsense\r")
    terminal.wait("there is no command /nonsense")
    terminal.type("/think on\r")
    terminal.wait("thinking is on now")
    terminal.type("What is the capital of France?\r")
    shown = terminal.wait(r"\d+ tokens, [\d.]+ tokens/s, first after [\d.]+ s\n\n> ?$")
    assert re.search(r"^  \S.*\n\n.*Paris", shown, re.M), "thinking is indented, and before the answer"
    row = next(y for y, line in enumerate(terminal.screen.display) if "What is the capital" in line) + 1
    assert terminal.screen.buffer[row][2].data.strip()
    terminal.type('"""one\rtwo"""\r')
    shown = terminal.wait(r'> """one\n\. two"""\n[\s\S]*tokens/s[^\n]*\n\n> ?$')
    assert "line" not in terminal.text.splitlines()[-1]
    assert all(len(line) <= SIZE[1] for line in shown.splitlines())
    terminal.type("\x1b[A")
    terminal.wait(r'> """one\n\. two"""$')
    terminal.type("\x03")
    terminal.wait(r"\(ctrl-D or /quit leaves\)\n> ?$")
    assert terminal.end() == 0

    again = Terminal(tmp_path, "--url", served.url, "--key", "secret")
    again.wait(r"> ?$")
    again.type("\x1b[A\x1b[A\x1b[A")
    again.wait(r"> What is the capital of France\?$|two")
    again.type("\x03")
    assert again.end() == 0
    assert (tmp_path / "llmk/chat_history").stat().st_mode & 0o777 == 0o600


def test_a_long_answer_of_a_hostile_model_is_stopped(tmp_path: Path) -> None:
    def drive(url: str) -> None:
        terminal = Terminal(tmp_path, "--url", url, "--no-history")
        terminal.wait(r"> ?$")
        terminal.type("Hello\r")
        terminal.wait(r"(word word\n\n){6}")
        terminal.type("\x03")
        terminal.wait(r"\(stopped\)\n> ?$", 20)
        assert "\u241b[2J" in "".join(
            character.data for row in terminal.screen.history.top for character in row.values()
        )
        assert terminal.end() == 0
        assert not (tmp_path / "llmk").exists()

    async def scenario(server: live.Live) -> None:
        await asyncio.to_thread(drive, f"http://127.0.0.1:{server.address[1]}")

    live.run(scenario, scripted_service(lambda prompt: Turn("\x1b[2J\n\n" + "word word\n\n" * 100_000)), seconds=240)


def test_without_colours_and_without_the_packages(served: Served, tmp_path: Path) -> None:
    (tmp_path / "prompt_toolkit.py").write_text("raise ImportError('as if it were not installed')")
    (tmp_path / "rich.py").write_text("raise ImportError('as if it were not installed')")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    terminal = Terminal(tmp_path, "--url", served.url, "--key", "secret", PYTHONPATH=path, NO_COLOR="1")
    terminal.wait(r"pip install 'llmk-core\[chat\]'[\s\S]*> ?$")
    terminal.type("What is the capital of France?\r")
    terminal.wait(r"Paris[\s\S]*tokens/s[\s\S]*> ?$")
    assert terminal.end() == 0


def test_a_pipe_has_the_answers_alone(served: Served, tmp_path: Path) -> None:
    command = [*LLMK, "chat", "--url", served.url, "--key", "secret", "--temperature", "0", "--no-think"]
    typed = "/help\nWhat is the capital \\\nof France?\n"
    ran = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "Paris" in ran.stdout
    assert len(ran.stdout.splitlines()) == 1
    assert "\x1b" not in ran.stdout + ran.stderr
    assert "/again" in ran.stderr
