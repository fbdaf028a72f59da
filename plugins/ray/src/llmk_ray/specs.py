"""The plugin module of ``llmk-ray``: what starts ranks on the nodes of a Ray cluster, and its section of the
configuration. Imports no Ray."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from llmk.api import OK, LauncherSpec, LaunchQuery, Verdict, hookimpl, no

OLDEST, TOO_NEW = (2, 40), (3, 0)
"""Versions of Ray: from the first on, and before the second."""


class Options(BaseModel, extra="forbid"):
    """``[plugin.ray]``."""

    address: str = Field("auto", description="The cluster's head, host:port; 'auto': the one that this machine is in.")
    namespace: str = Field("llmk", description="Ray's namespace of the job.")
    strategy: Literal["pack", "spread", "strict_pack", "strict_spread"] = Field(
        "pack",
        description="How ranks are placed: on few nodes or on many, if possible or ('strict_') not at all otherwise.",
    )
    devices_per_rank: Annotated[float, Field(ge=0)] = Field(
        1.0, description="How much of the platform's resource (GPU, TPU, CPU) a rank takes."
    )
    cpus_per_rank: Annotated[float, Field(ge=0)] = Field(
        1.0, description="CPUs that a rank takes in addition to a device of another kind."
    )
    resources: dict[str, float] = Field(
        {}, description='What else a rank takes, such as {"accelerator_type:H200" = 0.01}.'
    )
    placement_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0, description="How long to wait for places, such as of nodes that an autoscaler starts."
    )
    engine_address: str = Field(
        "", description="This machine's address for ranks on others. Empty: the one that Ray knows it by."
    )
    environment: dict[str, str] = Field({}, description="Environment variables of the ranks' processes.")


def supports(query: LaunchQuery) -> Verdict:
    """Where a Ray is installed that this wheel knows."""
    try:
        found = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return no("package_missing", wanted="ray", found="none", hint="pip install llmk-ray")
    version = tuple(int(part) for part in found.split(".")[:2])
    if not OLDEST <= version < TOO_NEW:
        wanted = f"ray >= {_dotted(OLDEST)}, < {_dotted(TOO_NEW)}"
        return no("package_version", wanted=wanted, found=found, hint=f'pip install "{wanted.replace(" ", "")}"')
    return OK


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """Which cluster, and where in it."""
    return Options


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """The nodes of a cluster."""
    return [
        LauncherSpec(
            id="ray.launcher",
            name="ray",
            implementation="llmk_ray.launcher:RayLauncher",
            supports=supports,
            summary="ranks on the nodes of a Ray cluster",
        )
    ]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
