"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import GrammarSpec, hookimpl


@hookimpl
def llmk_grammars() -> list[GrammarSpec]:
    """Compilers of grammars. One is used for all requests: that with the highest score, or that the config names."""
    return [
        GrammarSpec(
            id="acme.choices",
            name="acme-choices",
            implementation="llmk_acme.choices:Choices",
            kinds=("choice",),
            examples="llmk_acme.examples:CHOICES",
            summary="one of several texts",
        )
    ]
