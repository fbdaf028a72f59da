"""The plugin module of ``llmk-grammar``."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import GrammarSpec, hookimpl


@hookimpl
def llmk_grammars() -> Iterable[GrammarSpec]:
    """One compiler, for all kinds of grammars."""
    return [
        GrammarSpec(
            id="grammar.llguidance",
            name="llguidance",
            implementation="llmk_grammar.compiler:Compiler",
            kinds=("regex", "choice", "json", "lark"),
            examples="llmk_grammar.examples:GRAMMARS",
            summary="Regular expressions, choices, JSON schemas, Lark grammars, by llguidance: no mask is made ahead.",
        )
    ]
