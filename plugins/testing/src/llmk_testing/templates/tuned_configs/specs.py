"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import TunedConfigs, hookimpl


@hookimpl
def llmk_tuned_configs() -> list[TunedConfigs]:
    """Measurements. They are used on devices of their name if the user has no own measurements and the platform vouches
    for this wheel."""
    return [TunedConfigs(id="acme.measured", package="llmk_acme", folder="measured")]
