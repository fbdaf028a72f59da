"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import CommandSpec, hookimpl


@hookimpl
def llmk_commands() -> list[CommandSpec]:
    """Commands. ``llmk --help`` lists them without importing them."""
    return [
        CommandSpec(
            id="acme.count",
            name="acme-count",
            implementation="llmk_acme.count:Count",
            examples="llmk_acme.examples:COUNT",
            summary="count the prompts of a file",
        )
    ]
