"""The plugin module: what this distribution brings. It needs no torch."""

from __future__ import annotations

from llmk.api import TunedConfigs, hookimpl


@hookimpl
def llmk_tuned_configs() -> list[TunedConfigs]:
    """Measurements. They count on devices of their name where the user has measured nothing, and the platform vouches
    for this wheel."""
    return [TunedConfigs(id="acme.measured", package="llmk_acme", folder="measured")]
