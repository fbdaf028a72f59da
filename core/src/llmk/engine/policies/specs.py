"""The plugin ``policies``. Torch-free; what is chosen is imported then."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import PolicySpec, hookimpl

_PACKAGE = "llmk.engine.policies"
_POLICIES = (
    ("fcfs", "fcfs:Fcfs", "First come, first served."),
    ("priority", "priority:Priority", "Lower priority values first, then by arrival; the urgent displace the others."),
    ("fair", "fair:Fair", "Computed tokens are shared between tenants by weight; within one, by arrival."),
)


@hookimpl
def llmk_scheduling_policies() -> Iterable[PolicySpec]:
    """All policies of the core."""
    return [
        PolicySpec(id=f"policies.{name}", name=name, implementation=f"{_PACKAGE}.{where}", summary=summary)
        for name, where, summary in _POLICIES
    ]
