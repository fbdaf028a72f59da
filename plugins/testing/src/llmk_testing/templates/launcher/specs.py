"""The plugin module: this distribution's specs, and its section of the configuration. It imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import OK, LauncherSpec, LaunchQuery, Verdict, hookimpl, no

MOST_RANKS = 64
"""On one machine."""


class Options(BaseModel, extra="forbid"):
    """``[plugin.acme]``."""

    prefix: list[str] = Field([], description="What each rank's command starts with; {place} is the rank's place.")


def supports(query: LaunchQuery) -> Verdict:
    """Looks at the query alone; which devices are free is found out by ``place``."""
    ranks = query.tensor * query.pipeline
    return OK if ranks <= MOST_RANKS else no("ranks", wanted=f"at most {MOST_RANKS}", found=str(ranks))


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """Launchers of ranks."""
    return [
        LauncherSpec(
            id="acme.prefixed",
            name="acme-prefixed",
            implementation="llmk_acme.prefixed:Prefixed",
            supports=supports,
            examples="llmk_acme.examples:SECTION",
            summary="ranks on this machine, by a command such as numactl or taskset",
        )
    ]
