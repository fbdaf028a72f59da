"""``llmk run`` and ``llmk chat`` with the demo model in the same process."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from served import LLMK, MODEST

pytestmark = pytest.mark.slow_file

ENVIRONMENT = {**os.environ, **MODEST, "TERM": "dumb"}


def llmk(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LLMK, *args], input=stdin, capture_output=True, text=True, timeout=180, env=ENVIRONMENT)


@pytest.mark.slow
def test_run_keeps_thinking_out_of_the_answer() -> None:
    done = llmk("run", "demo", "What is 17 + 25?", "--temperature", "0", "--think")
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout
    assert "carry" in done.stderr
    assert "carry" not in done.stdout


def test_run_answers_with_the_demo_model_where_none_is_named() -> None:
    done = llmk("run", "What is the capital of France?", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_run_reads_standard_input_and_continues_raw_text() -> None:
    done = llmk("run", "-", "--raw", "--temperature", "0", "--max-tokens", "4", stdin="The capital of France is")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("run", "/no/such/model", "hi"), 5, "/no/such/model"),
        (("run", "demo", "hi", "--temperature", "-1"), 1, "temperature"),
        (("run", "demo", "word " * 9000), 1, "context"),
        (("chat", "--url", "http://127.0.0.1:9"), 1, "no server answers"),
    ],
)
def test_errors_are_one_clear_message(args: tuple[str, ...], code: int, message: str) -> None:
    done = llmk(*args)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def _hear_interrupts() -> None:
    """What a shell runs in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *args: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*LLMK, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=ENVIRONMENT,
            start_new_session=True,
            preexec_fn=_hear_interrupts,
        )
        os.close(slave)
        self.seen = ""

    def expect(self, holds: Callable[[str], bool], timeout: float = 120) -> str:
        """Reads until ``holds`` of what came since the last call; returns that."""
        new, end = "", time.monotonic() + timeout
        while not holds(new):
            assert time.monotonic() < end, f"the terminal shows {self.seen + new!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                new += os.read(self._master, 4096).decode(errors="replace")
        self.seen += new
        return new

    def type(self, text: str) -> None:
        """Types ``text``."""
        os.write(self._master, text.encode())

    def close(self) -> None:
        """Ends the program, if it runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal("chat", "demo", "--temperature", "0", "--max-tokens", "400")
    yield opened
    opened.close()


def test_a_conversation_in_a_terminal(terminal: Terminal) -> None:
    terminal.expect(lambda new: new.endswith("> "))
    terminal.type("/think on\n")
    terminal.expect(lambda new: new.endswith("> "))
    terminal.type("What is 17 + 25?\n")
    answer = terminal.expect(lambda new: new.endswith("> "))
    assert "\x1b[2m" in answer
    assert "42" in answer.partition("\x1b[0m")[2]
    terminal.type("/quit\n")
    assert terminal.process.wait(60) == 0


def test_ctrl_c_stops_the_answer_and_not_the_conversation(terminal: Terminal) -> None:
    """Whenever it comes: on a busy machine some of these come when the answer has just ended, and stop nothing."""
    terminal.expect(lambda new: new.endswith("> "))
    ends = []
    for wait in range(10):
        terminal.type("What is 123456789 + 987654321?\n")
        terminal.expect(lambda new: len(new.partition("\n")[2]) > 10)
        time.sleep(0.02 * wait)
        terminal.process.send_signal(2)
        told = terminal.expect(lambda new: ("(stopped)" in new or "leaves)" in new) and new.endswith("> "))
        ends.append("(stopped)" in told)
    assert any(ends)
    terminal.type("\x04")
    assert terminal.process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_ctrl_c_after_the_end_ends_it_at_once(wait: float) -> None:
    """While the engine is closed, or the interpreter ends."""
    process = subprocess.Popen(
        [*LLMK, "chat", "demo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        preexec_fn=_hear_interrupts,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    assert b"talking to demo" in process.stderr.readline()
    process.stdin.close()
    process.stdin = None
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    # A finalizing interpreter has no handler any more: the signal then ends the process, which shells report as 130.
    assert process.returncode in (0, 130, -signal.SIGINT), printed
    assert b"terminate" not in printed
    assert b"Traceback" not in printed


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_server_goes_on_where_its_log_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        command = [*LLMK, "serve", "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, env=ENVIRONMENT, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving ")
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
            process.communicate()
