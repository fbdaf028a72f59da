"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

import os

from pydantic import BaseModel

from llmk.api import OK, ExecutorSpec, LauncherSpec, LaunchQuery, PlatformSpec, SpeculatorSpec, Verdict, hookimpl, no

from .swift_numa import RANKS, facts_of, probe
from .swift_numpy_support import supports
from .swift_options import Options

_SMALL = frozenset({"avx2", "fma", "f16c"})
_LARGE = _SMALL | {"avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"}


def can_launch(query: LaunchQuery) -> Verdict:
    """Which devices are free is found out by ``place``."""
    return OK if hasattr(os, "pidfd_open") else no("pidfd_open", wanted="Linux 5.3", hint="use another launcher")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """Launchers of ranks."""
    return [
        LauncherSpec(
            id="swift.leases",
            name="leases",
            implementation="llmk_delta.swift_leases:LeasedDevices",
            supports=can_launch,
            examples="llmk_delta.swift_examples:LEASES",
            summary="ranks on this machine, on devices that engines lease from each other",
        )
    ]


@hookimpl
def llmk_speculators() -> list[SpeculatorSpec]:
    """Speculators."""
    return [
        SpeculatorSpec(
            id="swift.backoff",
            name="backoff",
            implementation="llmk_delta.swift_backoff:Backoff",
            examples="llmk_delta.swift_examples:BACKOFF",
            summary="what followed the request's last tokens most often, by the longest context that is sure",
        ),
        SpeculatorSpec(
            id="swift.period",
            name="period",
            implementation="llmk_delta.swift_period:Period",
            on_device=True,
            examples="llmk_delta.swift_examples:PERIOD",
            summary="that the request goes on with the period of its last tokens, on the device inside of the step",
        ),
    ]


@hookimpl
def llmk_executors() -> list[ExecutorSpec]:
    """Executors."""
    return [
        ExecutorSpec(
            id="swift.numpy",
            name="numpy",
            implementation="llmk_delta.swift_numpy:NumpyExecutor",
            supports=supports,
            knows=frozenset({"top_k", "top_p", "min_p"}),
            summary="dense decoders by NumPy, a request at a time",
        )
    ]


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """Platforms. The rank is low: it is used where it is named."""
    return [
        PlatformSpec(
            id="swift.delta",
            name="delta",
            implementation="llmk_delta.swift_numa_platform:DeltaPlatform",
            probe=probe,
            known=(
                facts_of("x86_64", _LARGE),
                facts_of("x86_64", _SMALL),
                facts_of("aarch64", frozenset({"asimd", "asimdhp", "asimddp"})),
            ),
            rank=-10,
            ranks=RANKS,
            examples="llmk_delta.swift_machines:MACHINES",
            summary="processors, each NUMA node a device",
        )
    ]
