"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import PolicySpec, hookimpl


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Scheduling policies. A policy is only used if the configuration names it."""
    return [
        PolicySpec(
            id="acme.shortest",
            name="acme-shortest",
            implementation="llmk_acme.shortest:Shortest",
            examples="llmk_acme.examples:SHORTEST",
            summary="short prompts first, then by arrival",
        )
    ]
