"""Chooses the reasoning and tool parsers for a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmk.api import Checkpoint, ParserQuery, ParserSpec
from llmk.api.matching import evaluate
from llmk.kernel.registry import Registered, Registry
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config


def choose_parser(
    registry: Registry, kind: str, config: Config, checkpoint: Checkpoint
) -> tuple[Registered[ParserSpec] | None, str]:
    """The parser of ``kind`` (``"reasoning"`` or ``"tool"``) and the reason; ``None`` if it is switched off or no
    parser claims the checkpoint.

    Raises SelectionError for an unknown id, and on a tie.
    """
    section = f"{kind}_parser"
    rules = getattr(config.select, section)
    if rules.use == "none":
        return None, f"off by [select.{section}] use"
    query = ParserQuery(checkpoint=checkpoint)
    claims = [(parser, evaluate(parser.spec.claims, query)) for parser in registry.of(ParserSpec, section)]
    chosen, why = elect(f"[select.{section}]", rules, claims, rank=lambda spec: spec.score, may_force=True)
    installed = ", ".join(parser.spec.name for parser, _ in claims) or "none"
    return chosen, why if chosen else f"no {kind} parser claims this checkpoint's dialect (installed: {installed})"
