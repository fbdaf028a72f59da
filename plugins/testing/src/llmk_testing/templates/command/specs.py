"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import CommandSpec, hookimpl


@hookimpl
def llmk_commands() -> list[CommandSpec]:
    """Commands of ``llmk``. A name that another wheel has is an error for the user, so it has this plugin's."""
    return [
        CommandSpec(
            id="acme.compare",
            name="acme-compare",
            implementation="llmk_acme.compare:Compare",
            examples="llmk_acme.examples:COMPARE",
            summary="print in what the configs of two checkpoints differ",
        )
    ]
