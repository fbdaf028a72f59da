"""The plugin module of ``llmk-testing``: the actions of ``llmk plugins`` for plugin authors, and ``llmk verify``."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import CommandSpec, hookimpl


@hookimpl
def llmk_commands() -> Iterable[CommandSpec]:
    """``llmk plugins check``, ``llmk plugins new`` and ``llmk verify``."""
    return [
        CommandSpec(
            id="testing.check",
            name="plugins check",
            implementation="llmk_testing.command:CheckCommand",
            summary="run the conformance kit on a plugin and print a report card",
        ),
        CommandSpec(
            id="testing.new",
            name="plugins new",
            implementation="llmk_testing.new:NewCommand",
            summary="write a working plugin as a starting point",
        ),
        CommandSpec(
            id="testing.verify",
            name="verify",
            implementation="llmk_testing.verify.command:VerifyCommand",
            summary="verify that llmk works on this machine's device, and how fast, for a table in the docs",
        ),
    ]
