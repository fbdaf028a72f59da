"""The plugin module of ``llmk-policies``: its scheduling policies."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import PolicySpec, hookimpl

_POLICIES = (
    ("fcfs", "fcfs:Fcfs", "First come, first served; priorities are ignored."),
    ("priority", "priority:Priority", "Lower priority values first, then by arrival; the urgent displace the others."),
    ("fair", "fair:Fair", "Computed tokens are shared between tenants by weight; within one, by arrival."),
)


@hookimpl
def llmk_scheduling_policies() -> Iterable[PolicySpec]:
    """Scheduling policies."""
    return [
        PolicySpec(
            id=f"policies.{name}",
            name=name,
            implementation=f"llmk_policies.{where}",
            examples=f"llmk_policies.examples:{name.upper()}",
            summary=summary,
        )
        for name, where, summary in _POLICIES
    ]
