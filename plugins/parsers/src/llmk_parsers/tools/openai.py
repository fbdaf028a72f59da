"""Tool calls of gpt-oss: messages of the harmony format to ``functions.name``."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.argument_stream import ArgumentStream
from llmk_parsers.channels import recipient_of
from llmk_parsers.harmony import FUNCTIONS, Harmony
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.tool_machine import ToolMachine

WRITER = JsonWriter(
    markers=("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|start|>"),
    opening=f"<|channel|>commentary to={FUNCTIONS}",
    middle=" <|constrain|>json<|message|>",
    closing="",
    separator="<|call|><|start|>assistant",
    quote=str,
)


class OpenAI(Harmony, ToolMachine):
    """Calls, and the content around them. Where no reasoning parser has read it before, reasoning is dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._set_up()
        self._kind = "content"
        self._call: ArgumentStream | None = None

    def _open(self, header: str, marker: str) -> None:
        self._kind = self._kind_of(header) if header or marker else "content"
        name = recipient_of(header).removeprefix(FUNCTIONS)
        if self._kind == "call" and not name:
            self._kind = "content"
            self._say(header + marker)
        elif self._kind == "call":
            self._call = ArgumentStream(self._start_call(), name, header + marker)
            self._out.append(self._call.start())

    def _piece(self, text: str) -> None:
        if self._call is not None:
            self._out += self._call.feed(text)
            if self._call.failed:
                self._call, self._kind, self._said = None, "content", True
        elif self._kind == "content":
            self._say(text)

    def _end(self, marker: str) -> None:
        if self._call is not None:
            self._out += self._call.end(marker)
            self._said = self._said or self._call.failed
            self._call = None

    def _close(self) -> None:
        self._end("")
        super()._close()
