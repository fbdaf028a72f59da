"""The plugin module."""

from __future__ import annotations

from pydantic import BaseModel

from llmk.api import LauncherSpec, hookimpl


class Options(BaseModel, extra="forbid"):
    """``[plugin.hosts]``: this machine's address, those of the others, and how Python is started there."""

    address: str = "127.0.0.1"
    hosts: list[str] = []
    command: list[str] = ["ssh", "{host}", "python3"]


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The hosts."""
    return Options


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """One rank on each host, in the order of the list."""
    where = {"implementation": "llmk_hosts.launcher:HostsLauncher", "examples": "llmk_hosts.examples:HERE"}
    return [LauncherSpec(id="hosts.launcher", name="hosts", **where)]
