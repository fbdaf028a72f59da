"""``llmk chat`` against a server."""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from scripted import ScriptedEngine

from llmk.api import ConfigError, EngineDead, LlmkError
from llmk.cli import chat
from llmk.cli.conversation.client import DIM, PLAIN, Printer, RemoteChatClient
from llmk.cli.conversation.input import PlainReader, command_of, completions, is_complete, message_of
from llmk.cli.conversation.screen import harmless, split_blocks
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
    shown = capsys.readouterr()
    assert shown.out == "Hello there.\n" * 5
    assert "talking to org/scripted" in shown.err
    assert "there is no command /nonsense; /help lists the commands" in shown.err


def test_an_error_is_shown_and_forgotten(
    url: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = "well!"
    assert converse(url, ["hi", "there"], monkeypatch) == 1
    assert "error: the parser test.angle failed" in capsys.readouterr().err
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
    printed = capsys.readouterr()
    assert "(stopped)" in printed.err
    assert "there." not in printed.out


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
    printer = Printer(sys.stdout, sys.stderr)
    chat.Conversation(talk, None, {}, PlainReader(interactive=False), printer).run()
    assert talk.asked == [["one"], ["one", "well", "two"], ["one", "well", "two", "", "three"]]
    shown = capsys.readouterr()
    assert shown.out == "well\nwell\n"
    assert shown.err == "(stopped)\n(ctrl-D or /quit leaves)\n(stopped)\n"


def test_commands_confirm(
    url: str,
    engine: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    said = {
        "/undo": "there is nothing to forget",
        "/again": "there is no question yet",
        "/hlp": "there is no command /hlp; did you mean /help?",
        "/help": chat.HELP,
        "/set": "nothing is set; there is max_tokens",
        "/set temperature 0.5": "temperature is 0.5 now",
        "/set top_k=3": "top_k is 3 now",
        "/set top_k x": "'x' is no value for top_k",
        "/set warmth 1": "there is no parameter 'warmth'",
        "/set ": "temperature = 0.5",
        "/set top_k": "top_k has its default now",
        "/think": "say /think on or /think off",
        "/think off": "thinking is off now",
        "/system be kind": "the system message is 'be kind' now",
        "hi": "",
        "/again ": "",
        "there": "",
        "/undo ": "1 before it are kept",
        "/save": "say where",
        f"/save {tmp_path / 'chat.json'}": "wrote 3 messages",
        f"/save {tmp_path / 'chat.json'} ": "exists, and stays as it is",
        f"/save {tmp_path / 'no' / 'chat.json'}": "can't be written: No such file",
        "/reset": "forgot the conversation; the system message stays",
        "/system": "there is no system message now",
        "//path": "",
    }
    assert converse(url, list(said), monkeypatch) == 0
    shown = capsys.readouterr()
    at = 0
    for typed, wanted in said.items():
        assert wanted in shown.err[at:], typed
        at = shown.err.index(wanted, at)
    assert shown.out == "Hello there.\n" * 4
    assert [call.text.rpartition("<user>")[2] for call in engine.calls] == [
        *("hi<assistant>False", "hi<assistant>False", "there<assistant>False", "/path<assistant>False"),
    ]
    assert {call.params.temperature for call in engine.calls} == {0.5}
    saved = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert [message["content"] for message in saved] == ["be kind", "hi", "Hello there."]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["one \\", "two\\", "three"], "one \ntwo\nthree"),
        (['"""one', "", '/two"""'], "one\n\n/two"),
        (['"""', "one", '"""'], "one"),
        (['"""one"""'], "one"),
        (["ends\\"], "ends"),
        (['"""never closed', "x"], "never closed\nx"),
    ],
)
def test_messages_of_several_lines(lines: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    text = PlainReader(interactive=False).read()
    assert command_of(text) is None
    assert message_of(text) == message
    assert is_complete("\n".join(lines)) == (lines[0] not in ("ends\\", '"""never closed'))


def test_commands_are_completed() -> None:
    pytest.importorskip("prompt_toolkit")
    choices = {"think": ("help", ["on", "off"]), "these": ("", [])}
    for typed, wanted in {"/th": ["/think", "/these"], "/thi": ["/think"], "/think o": ["on", "off"], "th": []}.items():
        assert [each.text for each in completions(choices, typed)] == wanted


def test_control_characters_of_a_model_are_shown_and_not_obeyed() -> None:
    hostile = "\x1b[2J\x1b]52;c;aGk=\x07\x9b1m\x7f a\tb\r\n"
    assert harmless(hostile) == "\u241b[2J\u241b]52;c;aGk=\u2407\ufffd1m\ufffd a\tb\n"
    terminal = Terminal()
    printer = Printer(terminal, terminal)
    printer.show({"content": hostile})
    assert "\x1b" not in terminal.getvalue()


def test_blocks_are_the_same_however_the_text_is_cut() -> None:
    text = "a\nb\n\n- c\n\n  d\n\ne\n```py\nf\n\ng\n```\n\n~~~\n```\n~~~\nh\n\n"
    whole, rest = split_blocks(text)
    assert [block.strip("\n") for block in whole] == ["a\nb", "- c\n\n  d", "e\n```py\nf\n\ng\n```", "~~~\n```\n~~~"]
    assert rest == "h\n\n"
    left, blocks = "", []
    for character in text:
        found, left = split_blocks(left + character)
        blocks += found
    assert ("".join(blocks) + left).split() == text.split()
    assert [block.strip("\n") for block in blocks] == [block.strip("\n") for block in whole]
