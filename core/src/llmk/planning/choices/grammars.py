"""Chooses what compiles grammars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmk.api import OK, GrammarSpec
from llmk.kernel.registry import Registered, Registry
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config

LINE = "[select.grammar]"


def choose_grammar(registry: Registry, config: Config) -> tuple[Registered[GrammarSpec] | None, str]:
    """The compiler of grammars and the reason; ``None`` if grammars are switched off or no wheel compiles any.

    Raises SelectionError for an unknown id, and on a tie.
    """
    rules = config.select.grammar
    if rules.use == "none":
        return None, f"off by {LINE} use"
    candidates = [(found, OK) for found in registry.of(GrammarSpec)]
    chosen, why = elect(LINE, rules, candidates, rank=lambda spec: spec.score)
    if chosen is None:
        why = "no installed wheel compiles grammars"
    elif not rules.use and not rules.prefer:
        why = "only candidate" if len(candidates) == 1 else f"score {chosen.spec.score}"
    return chosen, why
