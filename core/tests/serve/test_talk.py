"""``llmk chat`` against a server."""

from __future__ import annotations

import argparse
import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from scripted import ScriptedEngine

from llmk.api import ConfigError, EngineDead, LlmkError
from llmk.cli import chat
from llmk.cli.chat_client import DIM, PLAIN, Printer, RemoteChatClient
from llmk.serve import lifecycle
from llmk.serve.app import create_app
from llmk.serve.service import Service


@pytest.fixture
def url(make_service: Callable[..., Service]) -> Iterator[str]:
    """A scripted server that wants the key ``k``."""
    with lifecycle.bind("127.0.0.1", 0) as listener:
        config = uvicorn.Config(create_app(make_service(api_keys=("k",))), log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield lifecycle.url_of(listener)
        server.should_exit = True
        thread.join()


def converse(url: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    parser = argparse.ArgumentParser()
    chat.add_parser(parser.add_subparsers())
    typed = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    return chat.run(parser.parse_args(["chat", "--url", url, "--key", "k", *flags]))


def test_a_conversation(
    url: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["hi", "again", "/think on", "x", "/reset", "y", "/system be", "z", "/nonsense", "/quit", "never"]
    assert converse(url, lines, monkeypatch, "--temperature", "0", "--system", "old") == 0
    assert [call.text for call in engine.calls] == [
        "<system>old<user>hi<assistant>",
        "<system>old<user>hi<assistant>Hello there.<user>again<assistant>",
        "<system>old<user>hi<assistant>Hello there.<user>again<assistant>Hello there.<user>x<assistant>True",
        "<system>old<user>y<assistant>True",
        "<system>be<user>z<assistant>True",
    ]
    assert all(call.params.temperature == 0 for call in engine.calls)
    printed = capsys.readouterr().out
    assert printed.count("Hello there.\n") == 5
    assert "talking to org/scripted" in printed
    assert chat.HELP in printed


def test_an_error_is_shown_and_forgotten(
    url: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = "well!"
    converse(url, ["hi", "there"], monkeypatch)
    assert "error: the parser test.angle failed" in capsys.readouterr().out
    assert engine.calls[1].text == "<user>there<assistant>"


def test_ctrl_c_stops_the_answer(
    url: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show = Printer.show

    def interrupted(self: Printer, delta: dict[str, Any]) -> None:
        show(self, delta)
        if delta.get("content"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Printer, "show", interrupted)
    converse(url, ["hi"], monkeypatch)
    printed = capsys.readouterr().out
    assert "(stopped)" in printed
    assert "there." not in printed


def test_wrong_keys_and_servers_that_are_not_there(url: str) -> None:
    with pytest.raises(LlmkError, match="API key"):
        RemoteChatClient(url, "wrong")
    with lifecycle.bind("127.0.0.1", 0) as listener:
        address = lifecycle.url_of(listener)
    with pytest.raises(EngineDead, match="no server answers"):
        RemoteChatClient(address, None)


def test_a_model_and_a_url_exclude_each_other() -> None:
    parser = argparse.ArgumentParser()
    chat.add_parser(parser.add_subparsers())
    with pytest.raises(ConfigError, match="--url"):
        chat.run(parser.parse_args(["chat", "demo", "--url", "x"]))


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_thinking_is_dimmed_on_a_terminal() -> None:
    terminal = Terminal()
    printer = Printer(terminal, terminal)
    for delta in ({"role": "assistant", "content": ""}, {"reasoning_content": "\nHm\n"}, {"content": "\n\nYes"}):
        printer.show(delta)
    printer.end()
    assert terminal.getvalue() == f"{DIM}Hm\n{PLAIN}Yes\n"


def test_thinking_stays_out_of_a_pipe() -> None:
    out, aside = io.StringIO(), io.StringIO()
    printer = Printer(out, aside)
    for delta in ({"reasoning_content": "Hm"}, {"content": "Yes"}):
        printer.show(delta)
    printer.end()
    assert (out.getvalue(), aside.getvalue()) == ("Yes\n", "Hm\n")


class Interrupted:
    """Somebody who is interrupted, in the midst of the first answer and before the second."""

    name = "interrupted"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def chat(self, messages: Any, options: Any) -> Iterator[dict[str, str]]:
        self.asked.append([message["content"] for message in messages])
        if len(self.asked) == 2:
            raise KeyboardInterrupt
        yield {"content": "well"}
        if len(self.asked) == 1:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_ctrl_c_never_ends_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed = iter(["one", KeyboardInterrupt(), "two", "three", "/quit"])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    talk = Interrupted()
    chat.Conversation(talk, None, {}).run()
    assert talk.asked == [["one"], ["one", "well", "two"], ["one", "well", "two", "", "three"]]
    out = capsys.readouterr().out
    assert out == "well\n(stopped)\n\n(ctrl-D or /quit leaves)\n(stopped)\nwell\n"
