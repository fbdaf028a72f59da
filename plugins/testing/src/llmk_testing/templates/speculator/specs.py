"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import SpeculatorSpec, hookimpl


@hookimpl
def llmk_speculators() -> list[SpeculatorSpec]:
    """Speculators. One is only used if the configuration names it."""
    return [
        SpeculatorSpec(
            id="acme.pairs",
            name="acme-pairs",
            implementation="llmk_acme.pairs:Pairs",
            examples="llmk_acme.examples:PAIRS",
            summary="what followed the request's last two tokens earlier in it",
        )
    ]
