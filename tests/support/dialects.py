"""The dialects of ``llmk-parsers`` for its tests, by kind and name: ``"reasoning/qwen3"``, ``"tools/hermes"``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

from llmk.api import ParserContext, ParserSpec, TextDelta
from llmk_parsers import specs

SPECS: dict[str, ParserSpec] = {
    **{f"reasoning/{spec.name}": spec for spec in specs.llmk_reasoning_parsers()},
    **{f"tools/{spec.name}": spec for spec in specs.llmk_tool_parsers()},
}


def load(reference: str) -> Any:
    """The object that ``"module:attribute"`` names."""
    module, _, attribute = reference.partition(":")
    return attrgetter(attribute)(import_module(module))


def make(key: str, context: ParserContext | None = None) -> Any:
    """A fresh parser of the spec ``key``."""
    return load(SPECS[key].implementation)(context or ParserContext())


def examples(key: str) -> Sequence[str]:
    """The texts of the spec's examples, each once."""
    where = SPECS[key].examples
    return list(dict.fromkeys(example.text for example in load(where))) if where else []


class Chain:
    """A reasoning parser and the tool parser that reads the content it returns."""

    def __init__(self, parsers: Sequence[Any]) -> None:
        self._parsers = parsers

    def push(self, text: str) -> list[Any]:
        """The events after the next piece."""
        return self._run([TextDelta(text)] if text else [], ended=False)

    def finish(self) -> list[Any]:
        """The events at the end."""
        return self._run([], ended=True)

    def _run(self, events: list[Any], *, ended: bool) -> list[Any]:
        for parser in self._parsers:
            said = [out for event in events for out in _through(parser, event)]
            events = [*said, *parser.finish()] if ended else said
        return events


def _through(parser: Any, event: Any) -> list[Any]:
    return list(parser.push(event.text)) if isinstance(event, TextDelta) else [event]
