"""The plugin module: this distribution's specs, and its section of the configuration. It imports no torch."""

from __future__ import annotations

import os
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from llmk.api import (
    OK,
    ExecutorSpec,
    LauncherSpec,
    LaunchQuery,
    PlatformFacts,
    PlatformSpec,
    RankRules,
    SpeculatorSpec,
    Verdict,
    hookimpl,
    no,
)

from .rail_machine import ARM_LEVELS, X86_LEVELS, facts_of, probe
from .rail_trees import can_run


class Options(BaseModel, extra="forbid"):
    """``[plugin.rail]``."""

    devices: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="The devices to lease, close ones next to each other; none: all that the platform counts."
    )
    lease_folder: str = Field("", description="Where leases are kept; the same for all engines that share devices.")
    wait_seconds: float = Field(5.0, ge=0, description="How long to wait for devices that others are giving back.")
    longest_context: int = Field(4, ge=1, le=16, description="Tokens of the longest context that is counted.")
    least_share: float = Field(0.4, ge=0, le=1, description="Of what followed a context: the least that is drafted.")
    least_confidence: float = Field(0.3, ge=0, le=1, description="How likely all of a draft must be right.")
    longest_repeat: int = Field(8, ge=1, le=64, description="Tokens of a repeat, beyond which longer ones are alike.")
    shortest_repeat: int = Field(1, ge=1, le=64, description="Tokens of the shortest repeat that is drafted from.")
    window: int = Field(8192, ge=1, description="How far behind the end repeats are searched, in tokens.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.devices)) < len(self.devices):
            raise ValueError("devices: each is named once")
        if self.shortest_repeat > self.longest_repeat:
            raise ValueError("shortest_repeat: at most longest_repeat")
        return self


def can_launch(query: LaunchQuery) -> Verdict:
    """Devices that only one process can use are needed in the number of the ranks."""
    verdict = OK
    if not hasattr(os, "pidfd_open"):
        verdict &= no("system", wanted="pidfd_open, of Linux 5.3", found=os.name)
    ranks, devices = query.tensor * query.pipeline, query.platform.num_devices
    if ranks > devices > 0 and not query.platform.shared_device:
        verdict &= no("num_devices", wanted=ranks, found=devices, hint="spread the model over fewer ranks")
    return verdict


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options of all plugins of this distribution."""
    return Options


def known_machines() -> tuple[PlatformFacts, ...]:
    """The facts of machines that plans can be made for: one of each level, with nothing beyond it."""
    known = []
    for machine, levels, first in (("x86_64", X86_LEVELS, "lm"), ("aarch64", ARM_LEVELS, "asimd")):
        words = {first}
        known.append(facts_of(machine, frozenset(words)))
        for _, needed in levels:
            words.update(needed.split())
            known.append(facts_of(machine, frozenset(words)))
    return tuple(known)


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """The platform, below the others: it is used where it is named."""
    return [
        PlatformSpec(
            id="rail.lagoon",
            name="lagoon",
            implementation="llmk_lagoon.rail_platform:LagoonPlatform",
            probe=probe,
            known=known_machines(),
            rank=-10,
            ranks=RankRules(network=("GLOO_SOCKET_IFNAME",)),
            examples="llmk_lagoon.rail_platform_examples:MACHINES",
            summary="CPUs, by the levels of their psABI, within the limits of control groups",
        )
    ]


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """Launchers of ranks."""
    return [
        LauncherSpec(
            id="rail.leases",
            name="rail-leases",
            implementation="llmk_lagoon.rail_launcher:LeasingLauncher",
            supports=can_launch,
            examples="llmk_lagoon.rail_launcher_examples:SECTION",
            summary="ranks on this machine, on devices that engines lease from each other",
        )
    ]


@hookimpl
def llmk_speculators() -> list[SpeculatorSpec]:
    """Speculators. One is only used if the configuration names it."""
    return [
        SpeculatorSpec(
            id="rail.counts",
            name="rail-counts",
            implementation="llmk_lagoon.rail_counts:CountingSpeculator",
            examples="llmk_lagoon.rail_speculator_examples:COUNTS",
            summary="what followed the request's last tokens most often, while it is likely enough",
        ),
        SpeculatorSpec(
            id="rail.repeats",
            name="rail-repeats",
            implementation="llmk_lagoon.rail_repeats:RepeatSpeculator",
            on_device=True,
            examples="llmk_lagoon.rail_speculator_examples:REPEATS",
            summary="what followed the longest repeat of the request's end, inside of the step",
        ),
    ]


@hookimpl
def llmk_executors() -> list[ExecutorSpec]:
    """Executors. This one is used where it is named."""
    return [
        ExecutorSpec(
            id="rail.arrays",
            name="rail-arrays",
            implementation="llmk_lagoon.rail_executor:ArrayExecutor",
            supports=can_run,
            knows=frozenset({"top_k", "top_p", "min_p"}),
            summary="whole steps in NumPy",
        )
    ]
