"""Providers that are wrong in ways that bug threads of engines and libraries tell of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from defects import Defect, io_processor, logits_processor, parser, results
from llmk.api import Event, IOPrompt, RequestError, ToolCallStart
from llmk_testing.templates.reasoning_parser.thoughts import CLOSE, OPEN, Thoughts
from llmk_testing.templates.tool_parser.brackets import Brackets

HERE = __name__
COPIED, GROWING = "the rest of a piece is not copied", "processor time is linear"
WHOLE = "whole numbers are taken"


# Tool parsers


class Rests(Brackets):
    """Each call that a piece has is cut off from the rest of it."""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while (end := text.find("]]")) >= 0:
            events += super().push(text[: end + 2])
            text = text[end + 2 :]
        return events + super().push(text)


class Backtracking(Brackets):
    """A regular expression goes back from each of many spaces."""

    def push(self, text: str) -> list[Event]:
        re.search(r"\s+\[\[call\Z", text)
        return super().push(text)


class FromStart(Brackets):
    """The open call is read from its start with every piece."""

    def push(self, text: str) -> list[Event]:
        if self._call:
            with suppress(ValueError, RecursionError):
                json.loads("".join(self._call).partition(" ")[2])
        return super().push(text)


class NoColons(results.Calls):
    """What is behind a colon in a name is cut."""

    def _call(self, held: str) -> list[Event]:
        return [
            replace(one, name=one.name.partition(":")[0]) if isinstance(one, ToolCallStart) else one
            for one in super()._call(held)
        ]


class Forgets(results.Calls):
    """What was held back at the end is lost, where it could become a marker."""

    def finish(self) -> list[Event]:
        held = self._held
        return [] if held and parser.OPEN.startswith(held) and held != parser.OPEN else super().finish()


class AnyLetter(results.Writer):
    """A point in a tool's name stands for any letter."""

    def called(self, tool: Mapping[str, Any]) -> str:
        written = super().called(tool)
        return written.replace(json.dumps(f"[[call {tool['name']} "), f'"[[call " /{tool["name"]} /')


class Unquoted(results.Writer):
    """A text that is the only one is a regular expression."""

    def called(self, tool: Mapping[str, Any]) -> str:
        return super().called({**tool, "parameters": _patterns(tool.get("parameters") or {})})


def _patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _patterns(each) if isinstance(each, Mapping) else each for key, each in schema.items()}
    text = found.get("const")
    if isinstance(text, str) and re.fullmatch(r"\w[.|]\w", text):
        return {"type": "string", "pattern": f"^({text})$"}
    return found


ANY_LETTER, UNQUOTED = AnyLetter(), Unquoted()

TOOL_PARSERS = (
    Defect("no-colons", "what is behind a colon in a name is cut", NoColons, "names of any letters"),
    Defect("forgets", "what could become a marker is lost at the end", Forgets, "ends where a trigger starts"),
    Defect("any-letter", "a point in a name is any letter", {"writer": f"{HERE}:ANY_LETTER"}, "by their whole names"),
    Defect("unquoted", "a text is a regular expression", {"writer": f"{HERE}:UNQUOTED"}, "each keyword of a schema"),
    Defect("rests", "the rest of a piece is copied for each call", Rests, COPIED),
    Defect("backtracking", "a regular expression takes quadratic time", Backtracking, GROWING),
    Defect("from-start", "calls are read again with every piece", FromStart, GROWING),
)


# Reasoning parsers


class Partitioned(Thoughts):
    """Each marker that a piece has is cut off from the rest of it."""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        found = "]]"
        while found:
            before, found, text = text.partition("]]")
            events += super().push(before + found)
        return events


class Lazy(Thoughts):
    """A regular expression looks for the end from each marker that opens a thought."""

    def push(self, text: str) -> list[Event]:
        re.search(r"\[\[think\]\][\s\S]*?\[\[/think\]\]\Z", text)
        return super().push(text)


REASONING_PARSERS = (
    Defect(
        "lazy",
        "the end is looked for from each of many markers",
        {"name": f"{HERE}:Lazy", "markers": (OPEN, CLOSE)},
        GROWING,
    ),
    Defect(
        "partitioned",
        "the rest of a piece is copied for each marker",
        {"name": f"{HERE}:Partitioned", "markers": (OPEN, CLOSE)},
        COPIED,
    ),
)


# Logits processors


class Fractions(logits_processor.Good):
    """A push is a number with a fraction."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        if not isinstance(parameters.get("push", 5.0), float):
            raise RequestError("push must be a float", param="logits_processors")
        return super()._read(parameters)


LOGITS_PROCESSORS = (Defect("fractions", "2 is refused where 2.0 is taken", Fractions, WHOLE),)


# IO processors

IO = replace(results.IO, bodies=[*results.IO.bodies, {"texts": ["a b"], "kind": "hidden", "scale": 0.5}])


class Scaled(io_processor.Sums):
    """A scale is a number with a fraction."""

    def open(self, body: Any) -> Any:
        if not isinstance(body.get("scale", 1.0), float):
            raise RequestError("scale must be a float", param="scale")
        return super().open(body)


class Unit(io_processor.Sums):
    """Hidden states are divided by their length."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        request = io_processor.SumsRequest(prompts)
        take = request.take

        def divided(output: Any) -> None:
            hidden = output.hidden
            take(output if hidden is None else replace(output, hidden=hidden / hidden.norm(dim=1, keepdim=True)))

        request.take = divided  # type: ignore[method-assign]
        return request


IO_PROCESSORS = (
    Defect("scaled", "2 is refused where 2.0 is taken", {"name": f"{HERE}:Scaled", "examples": f"{HERE}:IO"}, WHOLE),
    Defect("unit", "states of zeros are divided by their length", Unit, "no matter what hidden states are"),
)
