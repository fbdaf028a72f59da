"""What is typed into ``llmk chat``: lines, messages of several lines, history and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

QUOTES = '"""'
PROMPT, CONTINUED = "> ", ". "

Choices = Mapping[str, tuple[str, Sequence[str]]]
"""Commands, each with its help and what may follow it."""


class Reader(Protocol):
    """Reads what is typed."""

    def read(self) -> str:
        """The next message or command, as it was typed. Raises ``EOFError`` at the end, and ``KeyboardInterrupt``."""
        ...


def is_complete(text: str) -> bool:
    """Whether nothing more is expected: quotes are closed, and the last line does not end with a backslash."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return len(stripped) >= 2 * len(QUOTES) and stripped.endswith(QUOTES)
    return not text.rstrip(" ").endswith("\\")


def command_of(text: str) -> tuple[str, str] | None:
    """The command that was typed and what follows it; ``None`` if it is a message. ``//`` starts one with a slash."""
    stripped = text.strip()
    if not stripped.startswith("/") or stripped.startswith("//"):
        return None
    name, _, value = stripped[1:].partition(" ")
    return name, value.strip()


def message_of(text: str) -> str:
    """The message that was typed, without its quotes or backslashes."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    lines = [line.rstrip(" ").removesuffix("\\") for line in stripped.split("\n")]
    return "\n".join(lines).removeprefix("/" if stripped.startswith("//") else "")


class PlainReader:
    """Reads lines with ``input``; from a pipe without prompts."""

    def __init__(self, interactive: bool) -> None:
        self._prompts = (PROMPT, CONTINUED) if interactive else ("", "")
        if interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  (gives input() its line editing)

    def read(self) -> str:
        """Lines up to one that completes the message, or up to the end."""
        text = input(self._prompts[0])
        with suppress(EOFError):
            while not is_complete(text):
                text += "\n" + input(self._prompts[1])
        return text


class TerminalReader:
    """Reads with prompt_toolkit: messages of several lines are edited as one, Tab completes commands, and what was
    typed is kept in ``history``, a file that only the user can read, or only in memory."""

    def __init__(self, choices: Choices, history: Path | None) -> None:
        self._session = _session(choices, _history(history))

    def read(self) -> str:
        """The text of the buffer when it is complete and Enter is pressed."""
        return self._session.prompt()


def reader_for(choices: Choices, keeps_history: bool, note: Callable[[str], None]) -> Reader:
    """The best reader for standard input and output."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if not interactive or os.environ.get("TERM") == "dumb":
        return PlainReader(interactive)
    try:
        return TerminalReader(choices, history_file() if keeps_history else None)
    except ImportError:
        note("for history, completion and Markdown: pip install 'llmk-core[chat]'")
        return PlainReader(interactive)


def history_file() -> Path:
    """Where the history is kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "llmk" / "chat_history"


def _history(file: Path | None) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _session(choices: Choices, history: History) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.filters import Condition

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            yield from completions(choices, document.text_before_cursor)

    return PromptSession(
        PROMPT,
        history=history,
        completer=Commands(),
        complete_while_typing=False,
        multiline=Condition(lambda: not is_complete(get_app().current_buffer.text)),
        prompt_continuation=CONTINUED,
        key_bindings=_keys(),
    )


def _keys() -> KeyBindings:
    """Alt+Enter starts a line."""
    from prompt_toolkit.key_binding import KeyBindings

    def start_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    keys = KeyBindings()
    keys.add("escape", "enter")(start_line)
    return keys


def completions(choices: Choices, text: str) -> Iterator[Completion]:
    """How a command that was started may go on."""
    from prompt_toolkit.completion import Completion

    if not text.startswith("/") or "\n" in text:
        return
    name, space, value = text[1:].partition(" ")
    if not space:
        for command, (help, _) in choices.items():
            if command.startswith(name):
                yield Completion(f"/{command}", -len(text), display_meta=help)
    elif name in choices:
        for word in choices[name][1]:
            if word.startswith(value):
                yield Completion(word, -len(value))
