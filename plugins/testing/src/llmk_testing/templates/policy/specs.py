"""The plugin module: what this distribution brings. It needs no torch."""

from __future__ import annotations

from llmk.api import PolicySpec, hookimpl


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Scheduling policies. One is used where the configuration names it, never because it is installed."""
    return [
        PolicySpec(
            id="acme.shortest",
            name="acme-shortest",
            implementation="llmk_acme.shortest:Shortest",
            summary="short prompts first, then by arrival",
        )
    ]
