"""``llmk chat``: a conversation in the terminal, with a model in this process or on a server."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmk.api import ConfigError, LlmkError
from llmk.cli import sampling
from llmk.cli.conversation.input import PlainReader, Reader, command_of, message_of, reader_for
from llmk.cli.output import say
from llmk.cli.terminal import width_of
from llmk.config import flags
from llmk.planning.tables import wrapped

if TYPE_CHECKING:
    from llmk.cli.conversation.client import ChatClient
    from llmk.cli.conversation.screen import Screen

SECTIONS = ("model", "platform", "parallel", "select", "plugins", "engine", "scheduler", "speculation", "cache")

_TOGETHER = 0.1
"""Seconds within which an answer comes as a whole: times of its tokens say nothing, and all of it counts."""

COMMANDS = {
    "help": ("", "this text"),
    "again": ("", "answer the last question again"),
    "undo": ("", "forget the last question and its answer"),
    "reset": ("", "forget the conversation"),
    "system": ("TEXT", "set the system message, and forget the conversation (no text: none)"),
    "think": ("on|off", "switch the model's thinking"),
    "set": ("NAME VALUE", "set a sampling parameter (no value: its default; no name: list those that are set)"),
    "save": ("FILE", "write the conversation to a file, as JSON"),
    "quit": ("", "leave (or ctrl-D)"),
}
"""Commands, each with what follows it and what it does."""
NOTES = """\"\"\" starts a message of several lines and ends it; so does a line that ends with \\
Tab completes commands, the arrow keys go through what was typed, ctrl-C stops an answer
// starts a message that starts with a slash"""
HELP = "\n".join((*(f"/{f'{name} {value}':19}{text}" for name, (value, text) in COMMANDS.items()), NOTES))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("chat", help="talk to a model in the terminal")
    flags.add_model(parser)
    parser.add_argument("--url", help="a running server, instead of a model in this process")
    parser.add_argument("--key", default=os.environ.get("LLMK_API_KEY"), help="API key of the server [$LLMK_API_KEY]")
    parser.add_argument("--no-history", action="store_true", help="keep no file of what was typed")
    parser.add_argument("--plain", action="store_true", help="show answers as they are, not as Markdown")
    sampling.add_flags(parser)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Reads questions and prints answers until the input ends. Returns 1 if an answer of a pipe's question failed."""
    if args.url and "model.path" in vars(args):
        raise ConfigError("both a model and --url are given", hint="the server at --url has its model already")
    reader = reader_for(_choices(), not args.no_history, _note)
    with closing(_open(args)) as talk:
        _note(f"talking to {talk.name}; /help lists the commands")
        conversation = Conversation(talk, args.system, sampling.options(args), reader, _screen(args.plain))
        conversation.run()
    return int(conversation.failed and isinstance(reader, PlainReader) and not sys.stdin.isatty())


def _open(args: argparse.Namespace) -> ChatClient:
    from llmk.cli.conversation.client import LocalChatClient, RemoteChatClient

    return RemoteChatClient(args.url, args.key) if args.url else LocalChatClient(flags.load_settings(args))


def _screen(plain: bool) -> Screen:
    from llmk.cli.conversation.client import Printer
    from llmk.cli.conversation.screen import screen

    aside = sys.stdout if sys.stdout.isatty() else sys.stderr
    return (None if plain else screen()) or Printer(sys.stdout, aside)


def _choices() -> dict[str, tuple[str, list[str]]]:
    words = {"think": ["on", "off"], "set": [f"{name} " for name in sampling.NUMBERS]}
    return {name: (help, words.get(name, [])) for name, (_, help) in COMMANDS.items()}


def _note(text: str) -> None:
    """Shows what is no answer: where answers go to a pipe or file, on standard error."""
    width = width_of(sys.stdout)
    print(wrapped(text, width)) if width else say(text)


@dataclass
class Speed:
    """How fast an answer came."""

    started: float
    first: float = 0.0
    tokens: int = 0

    def take(self, delta: Mapping[str, Any]) -> None:
        """Counts a delta. The last one may say how many tokens there were."""
        self.tokens = delta.get("usage", {}).get("completion_tokens", self.tokens)
        if not self.first and any(delta.get(field) for field in ("content", "reasoning_content", "tool_calls")):
            self.first = time.monotonic()

    def __str__(self) -> str:
        now = time.monotonic()
        rest = now - self.first
        rate = self.tokens / (now - self.started) if rest < _TOGETHER else (self.tokens - 1) / rest
        shown = f", {rate:.1f} tokens/s" if self.tokens > 1 else ""
        return f"{self.tokens} tokens{shown}, first after {self.first - self.started:.2f} s"


class Conversation:
    """The state of a conversation, and its commands. ``failed``: an answer was an error."""

    def __init__(
        self, talk: ChatClient, system: str | None, options: dict[str, Any], reader: Reader, screen: Screen
    ) -> None:
        self._talk = talk
        self._options = options
        self._reader = reader
        self._screen = screen
        self._messages: list[dict[str, Any]] = _system(system or "")
        self.failed = False

    def run(self) -> None:
        """Returns when the input ends or ``/quit`` is typed."""
        more = True
        while more:
            try:
                more = self._turn()
            except KeyboardInterrupt:
                _note("(ctrl-D or /quit leaves)")

    def _turn(self) -> bool:
        """Reads and handles a message or command; returns whether to read another one."""
        try:
            typed = self._reader.read()
        except EOFError:
            return False
        if (command := command_of(typed)) is not None:
            if command[0] == "quit":
                return False
            self._command(*command)
        elif message := message_of(typed):
            self._ask(message)
        return True

    def _command(self, name: str, value: str) -> None:
        commands: dict[str, Callable[[str], str]] = {
            "help": lambda _: HELP,
            "again": self._again,
            "undo": self._undo,
            "reset": self._reset,
            "system": self._set_system,
            "think": self._think,
            "set": self._set,
            "save": self._save,
        }
        if name in commands:
            said = commands[name](value)
        else:
            close = get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean /{close[0]}?" if close else "/help lists the commands; // starts a message"
            said = f"there is no command /{name}; {hint}"
        if said:
            _note(said)

    def _again(self, _: str) -> str:
        question = self._last_question()
        if question is None:
            return "there is no question yet"
        text = self._messages[question]["content"]
        del self._messages[question:]
        self._ask(text)
        return ""

    def _undo(self, _: str) -> str:
        question = self._last_question()
        if question is None:
            return "there is nothing to forget"
        del self._messages[question:]
        left = sum(message["role"] == "user" for message in self._messages)
        return f"forgot the last question and its answer; {left} before it are kept" if left else "forgot the question"

    def _last_question(self) -> int | None:
        asked = [i for i, message in enumerate(self._messages) if message["role"] == "user"]
        return asked[-1] if asked else None

    def _reset(self, _: str) -> str:
        self._messages = [message for message in self._messages[:1] if message["role"] == "system"]
        return "forgot the conversation" + ("; the system message stays" if self._messages else "")

    def _set_system(self, text: str) -> str:
        self._messages = _system(text)
        return f"the system message is {text!r} now" if text else "there is no system message now"

    def _think(self, value: str) -> str:
        if value not in ("on", "off"):
            return "say /think on or /think off"
        self._options = {**self._options, **sampling.thinking(value == "on")}
        return f"thinking is {value} now, if the model has a switch for it"

    def _set(self, text: str) -> str:
        name, _, value = text.replace("=", " ", 1).partition(" ")
        if not name:
            given = [f"{key} = {self._options[key]}" for key in sampling.NUMBERS if key in self._options]
            return "\n".join(given) or f"nothing is set; there is {', '.join(sampling.NUMBERS)}"
        if name not in sampling.NUMBERS:
            return f"there is no parameter {name!r}; there is {', '.join(sampling.NUMBERS)}"
        if not value.strip():
            self._options = {key: kept for key, kept in self._options.items() if key != name}
            return f"{name} has its default now"
        try:
            self._options = {**self._options, name: sampling.NUMBERS[name](value)}
        except ValueError:
            return f"{value.strip()!r} is no value for {name}"
        return f"{name} is {self._options[name]} now"

    def _save(self, name: str) -> str:
        if not name:
            return "say where: /save FILE"
        file = Path(name).expanduser()
        try:
            with file.open("x") as out:
                json.dump({"messages": self._messages}, out, indent=2, ensure_ascii=False)
        except FileExistsError:
            return f"{file} exists, and stays as it is; name another file"
        except OSError as error:
            return f"{file} can't be written: {error.strerror}"
        return f"wrote {len(self._messages)} messages to {file}"

    def _ask(self, question: str) -> None:
        content, speed = "", Speed(time.monotonic())
        asked = [*self._messages, {"role": "user", "content": question}]
        try:
            try:
                with closing(self._talk.chat(asked, self._options)) as deltas:
                    for delta in deltas:
                        speed.take(delta)
                        self._screen.show(delta)
                        content += delta.get("content") or ""
            finally:
                self._screen.end()
        except KeyboardInterrupt:
            _note("(stopped)")
        except LlmkError as error:
            _note(f"error: {error}")
            self.failed = True
            return
        else:
            if speed.tokens and sys.stdout.isatty():
                say(f"\x1b[2m{speed}\x1b[0m\n" if "NO_COLOR" not in os.environ else f"{speed}\n")
        self._messages = [*asked, {"role": "assistant", "content": content}]


def _system(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}] if text else []
