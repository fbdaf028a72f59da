"""Which reasoning and tool parser a checkpoint's text is read with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmk.api import Checkpoint, ParserQuery, ParserSpec
from llmk.kernel.matching import ask
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.selection import settle, unknown_id

if TYPE_CHECKING:
    from llmk.config import Config


def choose_parser(
    registry: Registry, kind: str, config: Config, checkpoint: Checkpoint
) -> tuple[Registered[ParserSpec] | None, str]:
    """The parser of ``kind`` (``"reasoning"`` or ``"tool"``) and why; ``None`` where it is off or nothing claims the checkpoint.

    Raises SelectionError for an unknown id, and on a tie.
    """
    section = f"{kind}_parser"
    rules = getattr(config.select, section)
    parsers = registry.specs(section, ParserSpec)
    if rules.use == "none":
        return None, f"off by [select.{section}] use"
    if rules.use:
        pinned = [p for p in parsers if rules.use in (p.spec.id, p.spec.name)]
        if not pinned:
            raise unknown_id(registry, section, str(rules.use), [p.spec.id for p in parsers])
        return settle(pinned, section, f"the name {rules.use!r}"), f"pinned by [select.{section}] use"
    query = ParserQuery(checkpoint=checkpoint)
    claiming = [p for p in parsers if p.spec.id not in rules.avoid and ask(p.spec.claims, query)]
    if not claiming:
        installed = ", ".join(p.spec.name for p in parsers) or "none"
        return None, f"no {kind} parser claims this checkpoint's dialect (installed: {installed})"
    preferred = [p for id in rules.prefer for p in claiming if p.spec.id == id]
    if preferred:
        return preferred[0], f"preferred by [select.{section}] prefer"
    best = max(p.spec.score for p in claiming)
    return settle([p for p in claiming if p.spec.score == best], section, "this checkpoint"), "claims the checkpoint"
