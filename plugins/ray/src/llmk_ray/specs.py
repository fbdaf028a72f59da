"""The plugin module of ``llmk-ray``: what starts ranks on the nodes of a Ray cluster, and its section of the
configuration. Imports no Ray."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import hookimpl


class Options(BaseModel, extra="forbid"):
    """``[plugin.ray]``."""

    address: str = Field("auto", description="The cluster's head, host:port; 'auto': the one that this machine is in.")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """Which cluster, and where in it."""
    return Options
