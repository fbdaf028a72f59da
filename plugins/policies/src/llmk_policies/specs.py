"""The plugin module of ``llmk-policies``: its scheduling policies and routers."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import PolicySpec, RouterSpec, hookimpl

_POLICIES = (
    ("fcfs", "fcfs:Fcfs", "First come, first served; priorities are ignored."),
    ("priority", "priority:Priority", "Lower priority values first, then by arrival; the urgent displace the others."),
    ("fair", "fair:Fair", "Computed tokens are shared between tenants by weight; within one, by arrival."),
)
_ROUTERS = (
    ("round_robin", "round_robin:RoundRobin", "Each replica in turn."),
    ("least_loaded", "least_loaded:LeastLoaded", "The replica with the fewest unfinished sequences."),
    ("prefix_aware", "prefix_aware:PrefixAware", "Where the prompt's prefix is cached, as long as work stays even."),
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


@hookimpl
def llmk_routers() -> Iterable[RouterSpec]:
    """Routers."""
    return [
        RouterSpec(
            id=f"policies.{name}",
            name=name,
            implementation=f"llmk_policies.{where}",
            examples=f"llmk_policies.router_examples:{name.upper()}",
            summary=summary,
        )
        for name, where, summary in _ROUTERS
    ]
