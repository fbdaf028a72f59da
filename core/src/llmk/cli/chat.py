"""``llmk chat``: a conversation in the terminal, with a model in this process or on a server."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from llmk.api import ConfigError, LlmkError
from llmk.cli import sampling
from llmk.config import flags

if TYPE_CHECKING:
    from llmk.cli.chat_client import ChatClient

SECTIONS = ("model", "platform", "parallel", "select", "plugins", "engine", "scheduler", "speculation", "cache")

HELP = """/help            this text
/reset           forget the conversation
/system TEXT     set the system message, and forget the conversation (no text: none)
/think on|off    switch the model's thinking
/quit            leave (or ctrl-D); ctrl-C stops an answer"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("chat", help="talk to a model in the terminal")
    flags.add_model(parser)
    parser.add_argument("--url", help="a running server, instead of a model in this process")
    parser.add_argument("--key", default=os.environ.get("LLMK_API_KEY"), help="API key of the server [$LLMK_API_KEY]")
    sampling.add_flags(parser)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Reads questions and prints answers until the input ends."""
    if args.url and "model.path" in vars(args):
        raise ConfigError("both a model and --url are given", hint="the server at --url has its model already")
    with closing(_open(args)) as talk:
        print(f"talking to {talk.name}; /help lists the commands")
        Conversation(talk, args.system, sampling.options(args)).run()
    return 0


def _open(args: argparse.Namespace) -> ChatClient:
    from llmk.cli.chat_client import LocalChatClient, RemoteChatClient

    return RemoteChatClient(args.url, args.key) if args.url else LocalChatClient(flags.load_settings(args))


class Conversation:
    """The state of a conversation, and its commands."""

    def __init__(self, talk: ChatClient, system: str | None, options: dict[str, Any]) -> None:
        self._talk = talk
        self._options = options
        self._messages: list[dict[str, Any]] = []
        self._set_system(system or "")

    def run(self) -> None:
        """Returns when the input ends or ``/quit`` is typed."""
        with suppress(ImportError):
            import readline  # noqa: F401  (gives input() its line editing)
        more = True
        while more:
            try:
                more = self._turn()
            except KeyboardInterrupt:
                print("\n(ctrl-D or /quit leaves)")

    def _turn(self) -> bool:
        """Reads and handles a line; returns whether to read another one."""
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return False
        if line == "/quit":
            return False
        if line.startswith("/"):
            self._command(*line[1:].partition(" ")[::2])
        elif line:
            self._ask(line)
        return True

    def _command(self, name: str, value: str) -> None:
        value = value.strip()
        if name == "reset":
            self._messages = [message for message in self._messages[:1] if message["role"] == "system"]
        elif name == "system":
            self._set_system(value)
        elif name == "think" and value in ("on", "off"):
            self._options = {**self._options, "chat_template_kwargs": {"enable_thinking": value == "on"}}
        else:
            print(HELP)

    def _set_system(self, text: str) -> None:
        self._messages = [{"role": "system", "content": text}] if text else []

    def _ask(self, question: str) -> None:
        from llmk.cli.chat_client import Printer

        printer, content = Printer(sys.stdout, sys.stdout), ""
        asked = [*self._messages, {"role": "user", "content": question}]
        try:
            try:
                with closing(self._talk.chat(asked, self._options)) as deltas:
                    for delta in deltas:
                        printer.show(delta)
                        content += delta.get("content") or ""
            finally:
                printer.end()
        except KeyboardInterrupt:
            print("(stopped)")
        except LlmkError as error:
            print(f"error: {error}")
            return
        self._messages = [*asked, {"role": "assistant", "content": content}]
