"""The served model of worker processes in tests: the scripted engine's, with parsers that misbehave on command."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from scripted import AngleReasoning, BracketTools, ScriptedEngine

from llmk.api import TextDelta
from llmk.config.limits_section import LimitsSection
from llmk.config.schema import Config
from llmk.engine.text.grammars import GrammarChecker
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.workers.frames import encode, framed, receive
from llmk.serve.workers.io_worker import Drop, Open, Order, Outcome
from llmk.serve.workers.served_model import ServedModel


class Wicked:
    """Does what the text names."""

    def __init__(self, context: Any) -> None:
        self._text = ""

    def push(self, text: str) -> list[Any]:
        self._text += text
        if "{loop}" in self._text:
            while True:
                pass
        if "{sleep}" in self._text:
            time.sleep(1e9)
        if "{regex}" in self._text:
            re.match(r"(a+)+$", "a" * 60 + "!")
        if "{exit}" in self._text:
            sys.exit(3)
        if "{interrupt}" in self._text:
            raise KeyboardInterrupt
        if "{end}" in self._text:
            os._exit(7)
        if "{kill}" in self._text:
            os.kill(os.getpid(), 11)
        if "{slow}" in self._text:
            self._text = ""
            time.sleep(1.0)
        if "{odd}" in self._text:
            return [TextDelta(object())]  # type: ignore[arg-type]
        if "{surrogate}" in self._text:
            return [TextDelta("\ud800")]
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Any]:
        return [TextDelta(".")]


class SlowTokenizer:
    """The scripted engine's, which takes long over some texts, and ends the process over others."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode_prompt(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if "{sleep}" in text:
            time.sleep(1e9)
        if "{end}" in text:
            os._exit(7)
        if "{bloat}" in text:
            bytearray(200 << 20)
        if "{hoard}" in text:
            hoard()
        found: list[int] = self._inner.encode_prompt(text, add_special_tokens)
        return found


def hoard() -> None:
    """Takes more and more memory."""
    held = []
    while True:
        held.append(bytearray(b"x") * (16 << 20))
        time.sleep(0.01)


DIALECTS = {
    "wicked": Dialect(ParserKind("test.wicked", Wicked)),
    "angle": Dialect(ParserKind("test.angle", AngleReasoning), ParserKind("test.bracket", BracketTools)),
}


def make(given: bytes) -> ServedModel:
    """What is served, with the dialect that is given."""
    if given == b"broken":
        raise ValueError("it can't be made")
    engine = ScriptedEngine()
    tokenizer: Any = SlowTokenizer(engine.tokenizer)
    dialect = DIALECTS[given.decode()]
    boot: Any = engine.boot
    grammars = GrammarChecker(None, Config())
    limits = LimitsSection()
    return ServedModel(engine.model_name, tokenizer, dialect, grammars, engine.default_params, limits, boot)


def answer_io(served: ServedModel, connection: socket.socket, mark: PluginMark) -> None:
    """A worker for an IO processor that answers with its process id."""
    decoder = msgspec.msgpack.Decoder(Order)
    while True:
        order = decoder.decode(receive(connection))
        if isinstance(order, Open) and order.body == b"{hoard}":
            hoard()
        if not isinstance(order, Drop):
            connection.sendall(framed(encode(Outcome(answer=str(os.getpid()).encode()))))
