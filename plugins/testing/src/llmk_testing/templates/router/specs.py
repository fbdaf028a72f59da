"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import RouterSpec, hookimpl


@hookimpl
def llmk_routers() -> list[RouterSpec]:
    """Routers. A router is only used if the configuration names it."""
    return [
        RouterSpec(
            id="acme.nearest",
            name="acme-nearest",
            implementation="llmk_acme.nearest:Nearest",
            examples="llmk_acme.examples:NEAREST",
            summary="the replica that would compute the fewest tokens",
        )
    ]
