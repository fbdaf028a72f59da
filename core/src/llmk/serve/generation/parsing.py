"""Parses generated text into typed events, by a reasoning parser and then a tool parser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmk.api import CallWriter, Event, ParserContext, ParserSpec, ReasoningParser, TextDelta, ToolParser
from llmk.kernel.contracts import NotFollowed, check_made
from llmk.kernel.loader import load_object, not_followed
from llmk.planning.choices.parsers import choose_parser
from llmk.serve.generation.output_rules import NO_OUTPUT_RULES, OutputFilter, OutputRules
from llmk.serve.http.errors import ParserFailed

if TYPE_CHECKING:
    from llmk.kernel.registry import Registered
    from llmk.planning.boot import Boot

Parser = ReasoningParser | ToolParser


@dataclass(frozen=True, slots=True)
class ParserKind:
    """A parser chosen for the model. ``special_tokens``: its markers are special tokens, which must not be skipped;
    ``markers`` open and close its reasoning; ``writer`` writes its calls."""

    id: str
    create: Callable[[ParserContext], Parser]
    special_tokens: bool = False
    markers: tuple[str, str] = ("", "")
    writer: CallWriter | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """The parsers for the model's reasoning and tool calls. ``None``: there are none, or no parser supports them."""

    reasoning: ParserKind | None = None
    tools: ParserKind | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    """For each kind (``"reasoning"``, ``"tool"``), why a parser was chosen, or no parser."""

    @classmethod
    def choose(cls, boot: Boot) -> Dialect:
        """Chooses by config and checkpoint, and imports what wins."""
        kinds: dict[str, ParserKind | None] = {}
        reasons: dict[str, str] = {}
        for kind in ("reasoning", "tool"):
            chosen, reasons[kind] = choose_parser(boot.registry, kind, boot.settings.config, boot.checkpoint)
            kinds[kind] = None
            if chosen is not None:
                kinds[kind] = _load(chosen, f"{kind}_parser")
        return cls(kinds["reasoning"], kinds["tool"], reasons)

    def describe(self) -> dict[str, dict[str, str | None]]:
        """The chosen parser of each kind and the reason, for the start-up table and ``/v1/plan``."""
        chosen = {"reasoning": self.reasoning, "tool": self.tools}
        return {kind: {"id": p.id if p else None, "why": self.why.get(kind, "")} for kind, p in chosen.items()}

    def chain(
        self,
        context: ParserContext,
        rules: OutputRules = NO_OUTPUT_RULES,
        mark: Callable[[str], object] = lambda id: None,
    ) -> ParserChain:
        """The parsers of one choice. Tool calls are parsed only if the request has tools."""
        return ParserChain(self.active(bool(context.tools)), context, rules, mark)

    def active(self, tools: bool) -> list[ParserKind]:
        """The parsers for a request with or without tools."""
        return [kind for kind in (self.reasoning, self.tools if tools else None) if kind is not None]


def _load(chosen: Registered[ParserSpec], kind: str) -> ParserKind:
    spec, plugin = chosen.spec, chosen.plugin
    create = load_object(spec.implementation, plugin=plugin, kind=kind, id=spec.id)
    writer = None
    if spec.writer:
        writer = load_object(spec.writer, plugin=plugin, id=spec.id)
        try:
            check_made(writer, "call_writer")
        except NotFollowed as error:
            raise not_followed(spec.writer, plugin.wheel, spec.id, error) from None
    return ParserKind(spec.id, create, spec.special_tokens, spec.markers, writer)


class ParserChain:
    """A chain of parsers: each parses the content that the one before it returned. The events of the last are filtered
    by a :class:`~llmk.serve.generation.output_rules.OutputFilter`.

    ``split`` are the events of the first parser, which separates reasoning from content, for the latest piece. ``mark``
    is called with a parser's id before each call, so that a parser that never returns can be identified.
    """

    def __init__(
        self,
        kinds: Sequence[ParserKind],
        context: ParserContext,
        rules: OutputRules = NO_OUTPUT_RULES,
        mark: Callable[[str], object] = lambda id: None,
    ) -> None:
        self.split: Sequence[Event] = ()
        self.gate = OutputFilter(rules)
        self._mark = mark
        self._stages: list[tuple[str, Parser]] = []
        for kind in kinds:
            with self._guard(kind.id):
                self._stages.append((kind.id, kind.create(context)))

    def push(self, text: str, num_tokens: int = 0, *, ended: bool = False) -> list[Event]:
        """The events that are certain after the next piece of text, of ``num_tokens`` tokens. ``ended``: it is the last
        piece. Raises :class:`ParserFailed`."""
        events: list[Event] = [TextDelta(text)] if text else []
        self.split = events
        for at, (id, parser) in enumerate(self._stages):
            with self._guard(id):
                events = _through(parser, events)
                if ended:
                    events += parser.finish()
            if at == 0:
                self.split = events
        return self.gate.pass_on(events, num_tokens, ended=ended)

    @contextmanager
    def _guard(self, id: str) -> Iterator[None]:
        self._mark(id)
        try:
            yield
        except BaseException as error:  # SystemExit of a parser must fail only its request
            raise ParserFailed.by(id, f"failed on this response: {type(error).__name__}: {error}") from error


def _through(parser: Parser, events: Iterable[Event]) -> list[Event]:
    out: list[Event] = []
    for event in events:
        out += parser.push(event.text) if isinstance(event, TextDelta) else (event,)
    return out
